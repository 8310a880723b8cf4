"""How many tokens the target is asked for at once while it goes on alone."""

from __future__ import annotations

# Often enough that a rested drafter comes back soon, seldom enough that the calls cost nothing.
MOST_TOKENS = 32
WHOLE_ANSWER = 2**31 - 1
# Where somebody reads along, a piece comes about as often; a call costs a millisecond of it.
SECONDS_A_PIECE = 0.05
# A piece that somebody reads along, where its size must not follow from times.
FIXED_PIECE = 4


class ChunkSize:
    """Sizes the pieces of an answer; ``steady`` ones take equal times, as fast as the target is.

    whole: an engine that drafts by itself gets the whole answer in one piece, where nobody reads
    along: a call in pieces would end its drafts early. timed: pieces may follow from times.

    >>> chunk_size = ChunkSize(steady=True)
    >>> for _ in range(4):
    ...     print(chunk_size.tokens)
    ...     chunk_size.adapt(chunk_size.tokens, 0.006 * chunk_size.tokens)
    1
    2
    4
    8
    """

    def __init__(self, *, steady: bool, whole: bool = False, timed: bool = True) -> None:
        self._adapts = steady and timed
        if steady:
            self.tokens = 1 if timed else FIXED_PIECE
        else:
            self.tokens = WHOLE_ANSWER if whole else MOST_TOKENS

    def adapt(self, tokens: int, seconds: float) -> None:
        """Hear how long a piece of ``tokens`` took."""
        if self._adapts and tokens:
            affordable = int(SECONDS_A_PIECE * tokens / max(seconds, 1e-6))
            self.tokens = max(1, min(affordable, 2 * self.tokens, MOST_TOKENS))
