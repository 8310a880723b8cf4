"""Drafting ahead: the draft engine keeps drafting while the target verifies."""
