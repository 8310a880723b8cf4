"""Guides: convert a request's fields to a grammar for the entries."""
