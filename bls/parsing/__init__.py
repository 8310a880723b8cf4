"""Reading and checking a client's request."""
