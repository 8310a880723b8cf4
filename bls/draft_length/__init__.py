"""How many tokens to draft: a fixed number, or ``auto``, which learns it."""
