"""TensorRT engines: checks, build steps, and launch."""
