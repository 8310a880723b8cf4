"""Parse and validate client requests."""
