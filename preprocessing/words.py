"""Convert a client's words to engine inputs: lists of token ids, and a bias on the logits.

Each function takes one list of words per prompt. Empty words are ignored, because NVIDIA's examples
send an empty word to mean none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tandem.contract.preprocessing import EMBEDDING_BIAS_WORDS
from tandem.preprocessing.errors import InputError

Words = Sequence[Sequence[str]]  # [b][words of the prompt]


def stop_word_lists(tokenizer: Tokenizer, words: Words) -> npt.NDArray[np.int32]:
    """Return the words' ids as NVIDIA's `stop_words_list`, [b, 2, n] (see `word_lists`)."""
    return word_lists([[_ids(tokenizer, word) for word in prompt] for prompt in words])


def special_stop_ids(
    tokenizer: Tokenizer, words: Words, special: Collection[int]
) -> npt.NDArray[np.int32]:
    """Return the id of each stop word that is one special token, and -1 for others: [b, words].

    special: the ids of all special tokens.
    """
    found = np.full((len(words), max(map(len, words))), -1, np.int32)
    for row, prompt in zip(found, words, strict=True):
        for at, word in enumerate(prompt):
            ids = _ids(tokenizer, word)
            if len(ids) == 1 and ids[0] in special:
                row[at] = ids[0]
    return found


def bad_word_lists(tokenizer: Tokenizer, words: Words) -> npt.NDArray[np.int32]:
    """Return the words' ids as NVIDIA's `bad_words_list`, [b, 2, n] (see `word_lists`).

    A word inside a sentence has other ids than the word on its own. NVIDIA's preprocessing bans
    only the word on its own. Here, the word after a space is banned, too.
    """
    spelled = [[form for word in prompt if word for form in (word, f" {word}")] for prompt in words]
    ids = ([_ids(tokenizer, form) for form in prompt] for prompt in spelled)
    return word_lists([list(dict.fromkeys(prompt)) for prompt in ids])  # each form once


def word_lists(ids: Sequence[Sequence[Sequence[int]]]) -> npt.NDArray[np.int32]:
    """Arrange words for TensorRT-LLM: [b, 2, n]. n: maximum number of ids per prompt, at least 1.

    Row 0 contains the ids of all words, padded with 0. Row 1 contains the end offset of each word,
    padded with -1. For example, words [7, 8] and [9] give [[7, 8, 9], [2, 3, -1]].
    """
    kept = [[word for word in prompt if word] for prompt in ids]
    width = max([1, *(sum(map(len, prompt)) for prompt in kept)])
    lists = np.empty((len(kept), 2, width), np.int32)
    lists[:, 0], lists[:, 1] = 0, -1
    for row, prompt in zip(lists, kept, strict=True):
        flat = [token_id for word in prompt for token_id in word]
        row[0, : len(flat)] = flat
        row[1, : len(prompt)] = np.cumsum([len(word) for word in prompt])
    return lists


def embedding_bias(
    tokenizer: Tokenizer, words: Words, weights: npt.NDArray[np.float32], vocab_size: int
) -> npt.NDArray[np.float32]:
    """Return the bias to add to the logits: [b, vocab_size]. weights: [b, words].

    A word of several ids adds its weight to each of them, once per occurrence, as in NVIDIA's
    preprocessing, but BOS gets no bias here. Raises InputError if an id is outside vocab_size.
    """
    bias = np.zeros((len(words), vocab_size), np.float32)
    for row, prompt, prompt_weights in zip(bias, words, weights, strict=True):
        for word, weight in zip(prompt, prompt_weights, strict=True):
            ids = list(_ids(tokenizer, word))
            if any(token_id >= vocab_size for token_id in ids):
                raise InputError(
                    f"{EMBEDDING_BIAS_WORDS} must be in the engine's vocabulary; got '{word}'",
                    EMBEDDING_BIAS_WORDS,
                )
            np.add.at(row, ids, weight)
    return bias


def _ids(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(word, add_special_tokens=False).ids) if word else ()
