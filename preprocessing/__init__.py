"""Convert text to token ids with only `tokenizers` (41 MB), without transformers and torch."""
