"""Chooses the number of tokens per call while the target decodes alone."""

from __future__ import annotations

# Few enough that drafts resume soon after a pause, many enough that calls cost little.
MOST_TOKENS = 32
WHOLE_ANSWER = 2**31 - 1
SECONDS_PER_CHUNK = 0.05  # of a stream; a call costs a millisecond of it
FIXED_CHUNK = 4  # of a stream whose chunks must not depend on times


class ChunkSize:
    """Number of tokens in the next call. In a steady stream, all chunks take about the same time.

    steady: the client streams, or a stop string may end the answer. whole: the engine drafts by
    itself; each new call would interrupt its drafts, so without streaming one call decodes the
    whole answer. timed: sizes may depend on measured times.

    >>> size = ChunkSize(steady=True)
    >>> for _ in range(4):
    ...     print(size.tokens)
    ...     size.adapt(size.tokens, 0.006 * size.tokens)
    1
    2
    4
    8
    """

    def __init__(self, *, steady: bool, whole: bool = False, timed: bool = True) -> None:
        self._adapts = steady and timed
        if steady:
            self.tokens = 1 if timed else FIXED_CHUNK
        else:
            self.tokens = WHOLE_ANSWER if whole else MOST_TOKENS

    def adapt(self, tokens: int, seconds: float) -> None:
        """Adjust the size, given that a chunk of ``tokens`` took ``seconds``."""
        if self._adapts and tokens:
            affordable = int(SECONDS_PER_CHUNK * tokens / max(seconds, 1e-6))
            self.tokens = max(1, min(affordable, 2 * self.tokens, MOST_TOKENS))
