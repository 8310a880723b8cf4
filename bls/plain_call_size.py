"""Chooses the number of tokens per plain call, in which the target decodes alone."""

from __future__ import annotations

# Small enough that drafting resumes soon after a pause, large enough that calls cost little. Also
# limits the calls that `auto` requests.
MAX_PLAIN_TOKENS = 32
UNBOUNDED = 2**31 - 1
SECONDS_PER_CALL = 0.05  # duration of a call in a stream; the call itself costs 1 ms
UNTIMED_TOKENS = 4  # tokens per call in a stream if sizes must not depend on measured times


class PlainCallSize:
    """Number of tokens in the next plain call.

    steady: the client streams, or a stop string may end the answer. Calls then take about the same
    time each. in_engine: the engine drafts by itself. A new call would interrupt its drafts, so one
    call decodes the whole answer unless ``steady``. use_timings: sizes may depend on measured
    times.

    >>> size = PlainCallSize(steady=True)
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
            self.tokens = 1 if use_timings else UNTIMED_TOKENS
        else:
            self.tokens = UNBOUNDED if in_engine else MAX_PLAIN_TOKENS

    def adapt(self, tokens: int, seconds: float) -> None:
        """Adjust the size after a call for ``tokens`` tokens took ``seconds``."""
        if self._adapts and tokens:
            affordable = int(SECONDS_PER_CALL * tokens / max(seconds, 1e-6))
            self.tokens = max(1, min(affordable, 2 * self.tokens, MAX_PLAIN_TOKENS))
