"""TensorRT engines: memory estimates, build steps, and checks of built engines."""
