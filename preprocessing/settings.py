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
    """

    tokenizer_dir: str
    add_special_tokens: bool
    vocab_size: int
    end_id: int
    pad_id: int
