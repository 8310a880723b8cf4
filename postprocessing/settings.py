"""The settings of `postprocessing`, read from the model's parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DetokenizerSettings:
    """Settings of `postprocessing`.

    tokenizer_dir: Hugging Face folder, absolute or relative to the model's version folder.
    skip_special_tokens: whether special tokens (BOS, EOS, ...) are omitted from the text.
    max_seq_len: maximum number of ids in a sequence; 0: no limit.
    """

    tokenizer_dir: str
    skip_special_tokens: bool
    max_seq_len: int = 0
