"""Parses and validates client requests."""
