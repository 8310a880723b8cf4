"""Handles a client's request inside Triton, from its tensors to its sequences."""
