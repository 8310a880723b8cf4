"""Constrains answers to a guide, such as a JSON schema."""
