"""Calls of the engines through Triton, including timeouts, stops, and failures."""
