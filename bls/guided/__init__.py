"""Constrains answers to a guide."""
