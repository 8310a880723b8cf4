"""Reads and checks a client's request."""
