"""Triton itself: where it is, what it serves, how it starts and ends."""
