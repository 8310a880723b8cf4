"""Measures the torch engine on a GPU with an inflated pair, alone and served by Triton."""
