"""TensorRT-LLM's own Python interface as an engine: it drafts, verifies and samples by itself."""
