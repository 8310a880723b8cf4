"""Compares outputs: accuracy, ROUGE, and reference answers from transformers."""
