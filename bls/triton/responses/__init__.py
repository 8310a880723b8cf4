"""The way back to a client."""
