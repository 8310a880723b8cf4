"""The decoding loop inside Triton: requests in, engine calls out, chunks back."""
