"""Kinds of engines: a module each holds its part of a profile and what becomes of it."""
