"""Answers that follow a guide."""
