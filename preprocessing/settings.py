"""The settings of `preprocessing`, which arrive as parameters of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of ``preprocessing``.

    tokenizer_dir: Hugging Face folder; relative to the model's version folder unless absolute.
    add_special_tokens: whether prompts get the tokenizer's own special tokens (usually BOS).
    vocab_size: padded width of the engines' logits, which an embedding bias must have.
    end_id, pad_id: defaults of a request.
    max_seq_len: of the engines, in tokens; 0: no limit.
    max_text_bytes: of one prompt, in UTF-8. max_words: of each list of stop, bad or bias words of a
    prompt. max_words_bytes: of all words of a request. 0: no limit.
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
