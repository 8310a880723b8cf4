"""Send requests to Triton and read its responses."""
