"""Prompt lookup: what followed the same n-gram before. The loop (V1) and engines (V2) share it."""
