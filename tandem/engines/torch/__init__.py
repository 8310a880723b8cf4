"""The torch engine: a Hugging Face checkpoint with continuous batching and KV cache reuse."""
