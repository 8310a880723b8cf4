"""Chooses the number of draft tokens: a fixed number, or ``auto``, which learns it."""
