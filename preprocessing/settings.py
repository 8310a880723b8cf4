"""The settings of `preprocessing`, read from the model's parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of `preprocessing`.

    tokenizer_dir: Hugging Face folder, absolute or relative to the model's version folder.
    add_special_tokens: whether prompts get the tokenizer's own special tokens (usually BOS).
    vocab_size: padded width of the engines' logits, which is also the width of an embedding bias.
    end_id, pad_id: defaults for requests.
    max_seq_len: maximum sequence length of the engines, in tokens; 0: no limit.
    max_text_bytes: maximum size of one prompt, in bytes of UTF-8; 0: no limit.
    max_words: maximum length of each list of stop, bad or bias words of a prompt; 0: no limit.
    max_words_bytes: maximum total size of all words of a request, in bytes; 0: no limit.
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
