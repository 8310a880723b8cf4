"""Finds, starts and stops Triton, and writes the repositories that it serves."""
