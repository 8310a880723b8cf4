"""What rounds and plain steps take, learned from those that were.

Seconds are wall to wall: from the end of one emit to the end of the next. What the engines say of
their own work tells how a round grows with its draft. The rest of it is hops, which do not depend
on the draft, and waiting for other sequences, which gets shorter where calls get longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

MEMORY = 0.99  # of a step; those of all requests count
LEAST = 1e-9  # seconds: what takes no time would earn without end
MOST = 3.0  # times what is expected: one that took longer met something else
# Of what is known, once a call takes less than a third of what is expected. Nothing makes a call
# shorter by chance: what made the others long is over.
OUTDATED = 0.5
# Calls in a row of each sequence that took more than MOST times as long. A pause of the machine
# meets one of each, perhaps two: what is longer is no pause.
PAUSED = 2


class LatencyModel:
    """``seconds = fixed + each * tokens``, fitted to recent calls by weighted least squares.

    through_zero: what calls of one length alone are taken for: nothing fixed, or nothing else.
    running: how many sequences make calls at once.
    """

    def __init__(self, running: Callable[[], int] = lambda: 1, *, through_zero: bool) -> None:
        self._running = running
        self._through_zero = through_zero
        self._num_slow = 0  # calls in a row
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._line = (0.0, 0.0)

    @property
    def known(self) -> bool:
        """Whether there was any call."""
        return self._n > 0

    def add(self, tokens: float, seconds: float) -> None:
        """Take a call in. One that took far longer than expected met something else.

        Many in a row did not: the engine has got slower.
        """
        x, y, memory = tokens, seconds, MEMORY
        fixed, each = self._line
        expected = fixed + each * x
        if expected > 0:
            self._num_slow = self._num_slow + 1 if y > MOST * expected else 0
            if self._num_slow > PAUSED * self._running() or y < expected / MOST:
                memory = OUTDATED
            else:
                y = min(y, MOST * expected)
        self._n = memory * self._n + 1.0
        self._x = memory * self._x + x
        self._y = memory * self._y + y
        self._xx = memory * self._xx + x * x
        self._xy = memory * self._xy + x * y
        self._line = self._fitted()

    @property
    def mean_tokens(self) -> float:
        """Of recent calls."""
        return self._x / self._n if self._n else 0.0

    def fit(self) -> tuple[float, float]:
        """Return ``fixed`` and ``each``, neither below zero."""
        return self._line

    def _fitted(self) -> tuple[float, float]:
        n, x, y, xx, xy = self._n, self._x, self._y, self._xx, self._xy
        spread = n * xx - x * x
        if spread < 1e-2 * n * n:
            return (0.0, y / x) if self._through_zero else (y / n, 0.0)
        each = max(0.0, (n * xy - x * y) / spread)
        fixed = (y - each * x) / n
        return (fixed, each) if fixed > 0 else (0.0, xy / xx)


class Mean:
    """Of recent values, of which one that is far larger than usual counts for less."""

    def __init__(self) -> None:
        self._weight = self.value = 0.0

    @property
    def known(self) -> bool:
        """Whether there was any."""
        return self._weight > 0

    def add(self, value: float) -> None:
        """Take a value in; one below zero is none."""
        value = max(0.0, value)
        if self.value:
            value = min(value, MOST * self.value)
        self._weight = MEMORY * self._weight + 1.0
        self.value += (value - self.value) / self._weight


class Rest:
    """Seconds of rounds that no engine took: of all, and of those while no other sequence ran."""

    def __init__(self) -> None:
        self._all, self._unshared = Mean(), Mean()

    @property
    def value(self) -> float:
        """Of rounds lately."""
        return self._all.value

    @property
    def unshared(self) -> float:
        """Of rounds in which nobody else could be waited for; without end where none is known."""
        return self._unshared.value if self._unshared.known else math.inf

    def add(self, seconds: float, num_running: int) -> None:
        """Take a round in, of so many sequences."""
        self._all.add(seconds)
        if num_running == 1:
            self._unshared.add(seconds)


class RoundTimes:
    """What a round takes, by who drafts and how many tokens are drafted in it.

    running: how many sequences decode now. What they wait for, processors or the interpreter's
    lock, has so many rounds a second, however long calls of engines are: a longer one waits less
    before the next. By mean value analysis of a closed queue (Schweitzer 1979) a round of n
    sequences gets longer by 1 / (1 + (n - 1) * w ** 2) of what its calls do, where w is the share
    of it that it waits and is served there. Only waiting is known, so calls are charged somewhat
    more than that.
    """

    def __init__(self, running: Callable[[], int] = lambda: 1) -> None:
        self._running = running
        self._draft = LatencyModel(running, through_zero=True)
        self._target = LatencyModel(running, through_zero=False)
        self._rest: dict[tuple[str, bool], Rest] = {}  # by drafter, and whether it waited first

    @property
    def known(self) -> bool:
        """Whether a round has been timed in which a model drafted."""
        return self._draft.known

    def add_draft(self, tokens: int, seconds: float) -> None:
        """Take a draft model's call in, by the engine's clock."""
        self._draft.add(tokens, seconds)

    def add_round(
        self, drafter: str, verified: int, target: float, rest: float, *, waited: bool = False
    ) -> None:
        """Take a round in: tokens verified, the target's seconds, and those of no engine.

        waited: for what was drafted ahead, which says nothing of rounds in turns.
        """
        self._target.add(verified, target)
        self._rest.setdefault((drafter, waited), Rest()).add(rest, self._running())

    def draft(self, tokens: int) -> float:
        """Return the seconds of a draft model's call."""
        fixed, each = self._draft.fit()
        return fixed + each * tokens

    def of_drafts(self, drafter: str) -> tuple[float, float]:
        """Return the seconds of a round in which a model drafts, and of each draft token.

        They hold for drafts about as long as lately.
        """
        return self._priced(drafter, self._target, self._draft)

    def of_copies(self, drafter: str) -> tuple[float, float]:
        """Return the same of a round whose draft costs no call."""
        return self._priced(drafter, self._target)

    def _priced(self, drafter: str, *calls: LatencyModel) -> tuple[float, float]:
        """Return the seconds of a round with such calls and no token, and what each token adds.

        With as many tokens as lately it takes as long as it did.
        """
        rest = self._rest_of(drafter)
        fits = [call.fit() for call in calls]
        fixed, each = sum(fit[0] for fit in fits), sum(fit[1] for fit in fits)
        usual = sum(fit[1] * call.mean_tokens for fit, call in zip(fits, calls, strict=True))
        waiting = self._waiting(drafter, rest) / max(LEAST, fixed + usual + rest)
        passed_on = 1 / (1 + max(0, self._running() - 1) * waiting**2)
        return max(LEAST, fixed + (1 - passed_on) * usual + rest), passed_on * each

    def _waiting(self, drafter: str, rest: float) -> float:
        """Return how much of that is waiting for other sequences; nothing where nobody knows.

        While no other one ran it was nothing, also in rounds that waited for branches: these took
        more than others, so the least is taken.
        """
        known = (self._rest[key].unshared for key in self._rest if key[0] == drafter)
        return max(0.0, rest - min(known, default=math.inf))

    def step(self, piece: int) -> float:
        """Seconds a token of the target alone, as its verifications let expect."""
        hop = min((rest.value for rest in self._rest.values()), default=0.0)
        return max(LEAST, self._target.fit()[0] + hop / piece)

    def _rest_of(self, drafter: str) -> float:
        """Of a drafter that has not been timed: as of another one."""
        known = self._rest.get((drafter, False)) or next(iter(self._rest.values()), None)
        return known.value if known else 0.0


class PlainTimes:
    """What the target takes for tokens without drafts."""

    def __init__(self, running: Callable[[], int] = lambda: 1) -> None:
        self._target = LatencyModel(running, through_zero=True)
        self._rest = Mean()

    @property
    def known(self) -> bool:
        """Whether a call has been timed."""
        return self._target.known

    def add(self, tokens: int, target: float, whole: float) -> None:
        """Take a call in: its tokens, the engine's seconds, all of it."""
        self._target.add(tokens, target)
        self._rest.add(whole - target)

    def a_token(self, piece: int) -> float:
        """Seconds a token, in calls for so many."""
        fixed, each = self._target.fit()
        return max(LEAST, each + (fixed + self._rest.value) / piece)
