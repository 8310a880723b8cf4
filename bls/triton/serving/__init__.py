"""Handles client requests inside Triton, from their tensors to their sequences."""
