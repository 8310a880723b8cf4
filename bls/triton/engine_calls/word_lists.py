"""Word lists in the format of NVIDIA's `bad_words_list` and `stop_words_list`.

A list is a table [2, n]. Row 0 contains the ids of all words, row 1 the end offset of each word,
padded with -1. The words [7, 8] and [9] become [[7, 8, 9], [2, 3, -1]].
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tandem.bls.request import TokenIds


def one_token_words(token_ids: Iterable[int]) -> TokenIds:
    """Return a table of words with one token each."""
    ids = list(token_ids)
    return np.array([ids, range(1, len(ids) + 1)], np.int32)


def join_tables(first: TokenIds | None, second: TokenIds | None) -> TokenIds | None:
    """Return one table with the words of two tables. None stands for a table without words."""
    if first is None or second is None:
        return second if first is None else first
    (ids, ends), (more_ids, more_ends) = _parts(first), _parts(second)
    return _table(np.concatenate([ids, more_ids]), np.concatenate([ends, more_ends + len(ids)]))


def drop_unknown(table: TokenIds | None, vocab_size: int) -> TokenIds | None:
    """Return the words whose ids are all below ``vocab_size``; the engine can't generate others."""
    if table is None:
        return None
    ids, ends = _parts(table)
    if not len(ends):
        return None
    if (ids < vocab_size).all():
        return table
    lengths = np.diff(ends, prepend=0)
    unknown = np.add.reduceat(ids >= vocab_size, ends - lengths) > 0
    kept_ids = ids[np.repeat(~unknown, lengths)]
    return _table(kept_ids, np.cumsum(lengths[~unknown])) if len(kept_ids) else None


def _parts(table: TokenIds) -> tuple[TokenIds, TokenIds]:
    """Return the ids of all words, and the words' end offsets without padding."""
    ends = table[1][table[1] >= 0]
    return table[0][: ends[-1] if len(ends) else 0], ends


def _table(ids: TokenIds, ends: TokenIds) -> TokenIds:
    table = np.full((2, len(ids)), -1, np.int32)
    table[0], table[1, : len(ends)] = ids, ends
    return table
