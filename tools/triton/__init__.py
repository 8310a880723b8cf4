"""Finds, starts and stops Triton, and writes the model repositories that it serves."""
