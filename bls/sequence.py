"""The prompt and the answer of one request, while the answer grows."""

from __future__ import annotations

import numpy as np

from tandem.bls.request import Request, TokenIds


class Sequence:
    """Prompt and answer in one array that is as long as the answer may become."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._start = len(request.prompt_ids)
        self._limit = self._start + request.max_tokens
        self._row: TokenIds = np.empty(self._limit, np.int32)
        self._row[: self._start] = request.prompt_ids
        self._length = self._start
        self._read = self._row.view()
        self._read.flags.writeable = False  # a drafter that writes there would change the text

    def __len__(self) -> int:
        return self._length

    @property
    def context(self) -> TokenIds:
        """Prompt and answer, [context_length], read-only; later tokens do not change it."""
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
        """Number of tokens by which the answer may still grow."""
        return self._limit - self._length

    @property
    def min_tokens_left(self) -> int:
        """Number of tokens that must precede an end of sequence."""
        return max(0, self.request.min_tokens - self.num_output_tokens)

    @property
    def draft_limit(self) -> int:
        """The longest draft that this round may verify; 0 means a plain target step.

        A round emits one token more than it accepts, so the last token needs no draft. While
        `min_tokens` is not reached, the whole round must lie below it: the target bans the end of
        sequence in all of a call or in none of it.
        """
        return self.draft_limit_after(0)

    def draft_limit_after(self, num_tokens: int) -> int:
        """Return `draft_limit` as it will be ``num_tokens`` later.

        Below 1, no draft is possible.
        """
        limit = min(self.request.longest_draft, self.tokens_left - num_tokens - 1)
        below_min = self.min_tokens_left - num_tokens
        return min(limit, below_min - 1) if below_min > 0 else limit

    def append(self, tokens: TokenIds) -> None:
        self._row[self._length : self._length + len(tokens)] = tokens
        self._length += len(tokens)

    def first_end(self, tokens: TokenIds) -> int | None:
        """Return the index of the first end of sequence in ``tokens``, or None."""
        ids = tokens.tolist()
        ends = [ids.index(end) for end in self.request.end_ids if end in ids]
        return min(ends) if ends else None

    def up_to_end(self, tokens: TokenIds) -> TokenIds:
        """Return ``tokens`` up to and including the first end of sequence. Later ones are void."""
        end = self.first_end(tokens)
        return tokens if end is None else tokens[: end + 1]
