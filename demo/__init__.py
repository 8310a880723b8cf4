"""The demo pair: a small target and a smaller draft with its tokenizer, and how they were made."""
