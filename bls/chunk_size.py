"""Chooses the number of tokens per target call while the target decodes alone."""

from __future__ import annotations

# Small enough that drafting resumes soon after a pause, large enough that calls cost little.
MAX_CHUNK_TOKENS = 32
WHOLE_ANSWER = 2**31 - 1
SECONDS_PER_CHUNK = 0.05  # target duration of a streamed chunk; the call itself costs 1 ms
FIXED_CHUNK = 4  # tokens per streamed chunk if sizes must not depend on measured times


class ChunkSize:
    """Number of tokens in the next call.

    steady: the client streams, or a stop string may end the answer. Chunks then take about the same
    time each. in_engine: the engine drafts by itself. A new call would interrupt its drafts, so one
    call decodes the whole answer unless ``steady``. use_timings: sizes may depend on measured
    times.

    >>> size = ChunkSize(steady=True)
    >>> for _ in range(4):
    ...     print(size.tokens)
    ...     size.adapt(size.tokens, 0.006 * size.tokens)
    1
    2
    4
    8
    """

    def __init__(self, *, steady: bool, in_engine: bool = False, use_timings: bool = True) -> None:
        self._adapts = steady and use_timings
        if steady:
            self.tokens = 1 if use_timings else FIXED_CHUNK
        else:
            self.tokens = WHOLE_ANSWER if in_engine else MAX_CHUNK_TOKENS

    def adapt(self, tokens: int, seconds: float) -> None:
        """Adjust the size after a chunk of ``tokens`` tokens took ``seconds``."""
        if self._adapts and tokens:
            affordable = int(SECONDS_PER_CHUNK * tokens / max(seconds, 1e-6))
            self.tokens = max(1, min(affordable, 2 * self.tokens, MAX_CHUNK_TOKENS))
