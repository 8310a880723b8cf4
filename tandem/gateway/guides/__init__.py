"""Converts a request's guide fields to a grammar for the entries."""
