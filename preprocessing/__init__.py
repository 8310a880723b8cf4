"""Text to token ids, by the `tokenizers` library alone (no transformers, no torch: 41 MB)."""
