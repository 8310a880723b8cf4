"""Compares texts: accuracy, ROUGE, and Hugging Face's own answers."""
