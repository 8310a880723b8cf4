"""The decoding loop in pure Python and numpy. ``bls.triton`` connects it to Triton."""
