"""The embedded engine: a Hugging Face checkpoint, continuous batching, a reusable KV cache."""
