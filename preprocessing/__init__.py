"""Text to token ids, with only the `tokenizers` library (no transformers, no torch: 41 MB)."""
