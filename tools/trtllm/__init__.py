"""TensorRT engines: build steps, and checks of built engines."""
