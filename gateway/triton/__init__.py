"""Requests to Triton and its responses."""
