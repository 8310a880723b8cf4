"""The drafters, one module each."""
