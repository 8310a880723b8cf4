"""TensorRT engines: from checkpoint to engine, what is checked before, how Triton is launched."""
