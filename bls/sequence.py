"""The tokens of one sequence: a prompt and its growing answer."""

from __future__ import annotations

import numpy as np

from tandem.bls.request import Request, TokenIds


class Sequence:
    """Prompt and answer in one array, allocated for the longest possible answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._start = len(request.prompt_ids)
        self._limit = self._start + request.max_tokens
        self._row: TokenIds = np.empty(self._limit, np.int32)
        self._row[: self._start] = request.prompt_ids
        self._length = self._start
        self._read = self._row.view()
        self._read.flags.writeable = False  # so that no drafter can change the answer

    def __len__(self) -> int:
        return self._length

    @property
    def context(self) -> TokenIds:
        """Prompt and answer so far, [context_length], read-only. Later tokens don't change it."""
        return self._read[: self._length]

    @property
    def output(self) -> TokenIds:
        """The answer so far, [num_output_tokens], read-only."""
        return self._read[self._start : self._length]

    @property
    def num_output_tokens(self) -> int:
        return self._length - self._start

    @property
    def tokens_left(self) -> int:
        """Number of tokens that may still be added to the answer."""
        return self._limit - self._length

    @property
    def min_tokens_left(self) -> int:
        """Number of tokens to generate before an end of sequence is allowed."""
        return max(0, self.request.min_tokens - self.num_output_tokens)

    def draft_limit(self, new_tokens: int = 0) -> int:
        """Return the maximum number of draft tokens after ``new_tokens`` more tokens.

        If it is below 1, the target decodes alone. A round emits one token more than it accepts, so
        the last token needs no draft. The target bans the end of sequence in a whole call or not at
        all. So a round that begins before ``min_tokens`` must not extend beyond it.
        """
        limit = min(self.request.longest_draft, self.tokens_left - new_tokens - 1)
        below_min = self.min_tokens_left - new_tokens
        return min(limit, below_min - 1) if below_min > 0 else limit

    def append(self, tokens: TokenIds) -> None:
        self._row[self._length : self._length + len(tokens)] = tokens
        self._length += len(tokens)

    def find_eos(self, tokens: TokenIds) -> int | None:
        """Return the index of the first end of sequence in ``tokens``, or None."""
        ids = tokens.tolist()
        ends = [ids.index(end) for end in self.request.end_ids if end in ids]
        return min(ends) if ends else None

    def up_to_end(self, tokens: TokenIds) -> TokenIds:
        """Return ``tokens`` up to and including the first end of sequence."""
        end = self.find_eos(tokens)
        return tokens if end is None else tokens[: end + 1]
