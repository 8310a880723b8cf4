"""Chooses the number of draft tokens per round: a fixed number, or ``auto``, which learns it."""
