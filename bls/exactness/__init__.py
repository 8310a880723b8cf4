"""Ensures that drafts don't change the distribution of an answer."""
