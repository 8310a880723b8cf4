"""An engine on TensorRT-LLM's Python API, which drafts, verifies and samples by itself."""
