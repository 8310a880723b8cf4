"""Small tokenizers of the common kinds, trained on demand."""

import functools
import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "def add(first, second):\n    return first + second",
    "Grüße aus Köln, señor — naïve café",
    "привет мир, 你好世界, 😀😀 👩‍👩‍👧",
] * 10
SPECIAL = ["<unk>", "<s>", "</s>"]


def _trainer(kind, **options):
    return kind(vocab_size=420, special_tokens=SPECIAL, show_progress=False, **options)


@functools.cache
def byte_level():
    """Return a byte-level tokenizer like Llama 3's.

    One of the added tokens contains characters that don't represent a byte.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, _trainer(trainers.BpeTrainer, initial_alphabet=alphabet))
    tokenizer.add_tokens([AddedToken("<tool call>"), AddedToken("世界")])
    return tokenizer


@functools.cache
def byte_fallback():
    """Return a tokenizer like Llama 2's, which has byte fallback and strips one leading space."""
    pieces = json.loads(_pieces().to_str())["model"]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [piece for piece in pieces["vocab"] if piece not in SPECIAL]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: number for number, name in enumerate(names)},
            merges=[tuple(merge) for merge in pieces["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(SPECIAL)
    mark = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark])
    space, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    steps = [space, decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _pieces():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(LINES[:2], _trainer(trainers.BpeTrainer))
    return tokenizer


@functools.cache
def metaspace():
    """Return a unigram tokenizer like T5's, whose decoder strips the space of the first word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(LINES, _trainer(trainers.UnigramTrainer, unk_token="<unk>"))
    return tokenizer


@functools.cache
def words():
    """Return a tokenizer without a decoder, which joins tokens with spaces."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(LINES, _trainer(trainers.WordLevelTrainer))
    return tokenizer


def renumbered(tokenizer):
    """Return a tokenizer with the same tokens, but with ids in reverse order."""
    state = json.loads(tokenizer.to_str())
    last = tokenizer.get_vocab_size() - 1
    state["model"]["vocab"] = {t: last - number for t, number in state["model"]["vocab"].items()}
    for token in state["added_tokens"]:
        token["id"] = last - token["id"]
    state["added_tokens"].sort(key=lambda token: token["id"])
    return Tokenizer.from_str(json.dumps(state))


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "metaspace": metaspace}
KINDS["words"] = words


def write(tokenizer, folder: Path, **config):
    """Write a tokenizer folder in Hugging Face's layout, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
