"""What the gateway asks of Triton; nothing else in the gateway knows it."""
