"""The KV cache in pages, for GPUs: attention over all sequences of a step in one call."""
