"""The gRPC client: sends requests, reads answers, and displays them."""
