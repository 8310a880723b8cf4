"""The demo pair: a small target, a smaller draft, their tokenizer, and the code that made them."""
