"""Drafting while the target verifies: whether, how much, and what became of it."""
