"""What a deployment decides for `preprocessing`; it arrives as parameters of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of ``preprocessing``.

    tokenizer_dir: Hugging Face folder; relative to the model's version folder unless absolute.
    add_special_tokens: whether prompts get what the tokenizer adds by itself (usually BOS).
    vocab_size: padded width of the engines' logits, which an embedding bias must have.
    end_id, pad_id: what a request that names none gets.
    max_seq_len: of the engines, in tokens; 0 leaves it open.
    max_text_bytes: of one prompt, in UTF-8. max_words, max_words_bytes: of each list of stop, bad
    or bias words of a prompt, and of all words of a request. 0 leaves each of them open.
    """

    tokenizer_dir: str
    add_special_tokens: bool
    vocab_size: int
    end_id: int
    pad_id: int
    max_seq_len: int = 0
    max_text_bytes: int = 0
    max_words: int = 0
    max_words_bytes: int = 0
