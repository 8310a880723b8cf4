"""The corpus as cached token ids, and its batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from tandem.demo.corpus import Document, documents
from tandem.demo.vocabulary import END_OF_TEXT, save_tokenizer, train_tokenizer

Ids = npt.NDArray[np.uint16]

DEMO = Path(__file__).parent
STATE = DEMO / ".train"
TOKENIZER = DEMO / "tokenizer"


@dataclass(frozen=True)
class TokenizedCorpus:
    """Two streams of token ids, with an end-of-text token between documents."""

    train: Ids
    held_out: Ids


def load_corpus() -> TokenizedCorpus:
    """Load the tokenized corpus from the cache, or tokenize it.

    Trains the tokenizer if it doesn't exist.
    """
    cached = STATE / "corpus.npz"
    if not cached.exists():
        STATE.mkdir(exist_ok=True)
        found = documents()
        tokenizer = _tokenizer(found)
        streams = {
            split: _stream(tokenizer, [d for d in found if d.split == split])
            for split in ("train", "held_out")
        }
        np.savez(cached, **streams)
    with np.load(cached) as arrays:
        return TokenizedCorpus(arrays["train"], arrays["held_out"])


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def batch(stream: Ids, index: int, rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Return batch `index` of an infinite, seeded shuffle of `stream`: ids [rows, length + 1].

    Each pass over the stream starts at a different offset, so windows don't repeat exactly.
    """
    windows = len(stream) // length - 2
    epoch, first = divmod(index * rows, windows)
    starts: list[int] = []
    while len(starts) < rows:
        rng = np.random.default_rng((seed, length, epoch))
        offset = int(rng.integers(length))
        starts += [
            offset + int(w) * length
            for w in rng.permutation(windows)[first : first + rows - len(starts)]
        ]
        epoch, first = epoch + 1, 0
    return torch.from_numpy(np.stack([stream[s : s + length + 1] for s in starts]).astype(np.int64))


def _tokenizer(found: list[Document]) -> Tokenizer:
    if not (TOKENIZER / "tokenizer.json").exists():
        # A third of the files is enough to learn the merges; more would only take memory.
        save_tokenizer(train_tokenizer(d.text for d in found[::3] if d.split == "train"), TOKENIZER)
    return load_tokenizer()


def _stream(tokenizer: Tokenizer, found: list[Document]) -> Ids:
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch_fast([d.text for d in found])
    return np.concatenate([np.array([*e.ids, end], dtype=np.uint16) for e in encoded])
