"""Keeps drafts from changing the distribution of an answer."""
