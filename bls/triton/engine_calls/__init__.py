"""Calls of the engines through Triton: sending, waiting, stopping, and failing."""
