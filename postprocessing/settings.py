"""What a deployment decides for `postprocessing`; it arrives as parameters of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DetokenizerSettings:
    """Settings of ``postprocessing``.

    tokenizer_dir: Hugging Face folder; relative to the model's version folder unless absolute.
    skip_special_tokens: whether special tokens (BOS, EOS, ...) leave no text.
    max_seq_len: the most ids of a sequence; 0 leaves it open.
    """

    tokenizer_dir: str
    skip_special_tokens: bool
    max_seq_len: int = 0
