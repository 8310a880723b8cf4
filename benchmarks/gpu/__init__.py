"""The torch engine on a GPU, measured on an inflated pair: alone, and behind Triton."""
