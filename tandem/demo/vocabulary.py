"""The byte-level BPE tokenizer that target and draft share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 3072
END_OF_TEXT = "<|endoftext|>"

# Newlines and spaces form separate runs, so an indentation is one token, and a prompt can end
# before or after it. A name includes one leading space or dot. CamelCase is split at capitals. Each
# digit is separate.
PIECES = (
    r"[ .]?(?:\p{Lu}?[\p{Ll}_]+|[\p{Lu}_]+(?!\p{Ll})|\p{L})"
    r"|[ ]?\p{N}|\n+|[ ]{2,}|[ ]?[^\s\p{L}\p{N}_]+|\s"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer on `texts`; the end-of-text token has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the two files that `AutoTokenizer` and `Tokenizer.from_file` load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
