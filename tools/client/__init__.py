"""The gRPC client: sends requests, reads the answers and displays them."""
