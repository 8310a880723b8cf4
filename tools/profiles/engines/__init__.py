"""A kind of engine each: its part of a profile, and what becomes of it."""
