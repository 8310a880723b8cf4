"""Guides of answers: converts the fields of a request to a grammar for the entries."""
