"""Models by name: a folder, a model of the Hugging Face Hub, or a GGUF file."""
