"""The paged KV cache for GPUs: one attention call serves all sequences of a step."""
