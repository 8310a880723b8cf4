"""Finds models by name: a folder, a model on the Hugging Face Hub, or a GGUF file."""
