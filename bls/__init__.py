"""The decoding loop: pure Python and numpy. Triton begins in ``bls.triton``."""
