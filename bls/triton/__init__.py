"""Runs the decoding loop inside Triton: parses requests, calls engines, returns chunks."""
