"""What ``auto`` measures: costs of steps at one load. Also the size of plain calls.

A load is a number of running sequences. `draft_length` chooses drafts from these costs.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from statistics import median

SLOT_MEMORY = 0.9  # decay per full slot: about the last 10 slots count
# A first measurement has at least this many rounds, with drafts of these lengths in turn, and then
# as many plain calls of this many tokens. Shorter calls cost more per token.
FIRST_STEPS, FIRST_DRAFTS, FIRST_PLAIN_TOKENS = 4, (2, 6), 3
MOST_STEPS = 10_000  # kept per slot; before the first draft, a slot has no end
LONGEST_STEP = 2.0  # times the expected duration; any excess is a pause of the machine
SHORTEST_SLOT, LONGEST_SLOT = 0.25, 8.0  # seconds, powers of two
SLOT_ROUNDS = 4  # minimum number of rounds that fit into a slot
PERIOD_NO_DRAFTS, PERIOD_DRAFTING = 128, 32  # slots between two experiments of the same kind


class Mode(Enum):
    """Drafting mode of all sequences during a slot."""

    BEST = 0  # each sequence does what its plan expects to be fastest
    NO_DRAFTS = 1  # the target decodes without drafts
    DRAFTING = 2


class Slots:
    """The time slots under one load. seconds: length of a slot."""

    def __init__(self) -> None:
        self.seconds = SHORTEST_SLOT

    def choose_length(self, round_seconds: float) -> None:
        """Choose the length of the slots. round_seconds: duration of a round with a draft.

        Lengths are powers of two, so that boundaries of long slots coincide with boundaries of
        short ones.
        """
        exponent = math.ceil(math.log2(max(1e-9, SLOT_ROUNDS * round_seconds)))
        self.seconds = min(max(SHORTEST_SLOT, 2.0**exponent), LONGEST_SLOT)

    def number(self, now: float) -> int:
        """Return the number of the slot at time ``now``, in seconds."""
        return int(now / self.seconds)

    def mode(self, slot: int) -> Mode:
        """Return the mode of all sequences during a slot."""
        if slot % PERIOD_NO_DRAFTS == 0:
            return Mode.NO_DRAFTS
        return Mode.DRAFTING if slot % PERIOD_DRAFTING == PERIOD_DRAFTING // 2 else Mode.BEST

    def seconds_to_change(self, now: float) -> float:
        """Return how many seconds a call without a draft may take from ``now``.

        A call ends before the next slot in which all sequences draft. In a slot without drafts, it
        ends with the slot. Rounds that began with drafts may last until about the end of the slot's
        first quarter, and nothing is measured before then (see `LoadCosts`). So a call that begins
        in that quarter ends with it.
        """
        slot = self.number(now)
        if self.mode(slot) is Mode.NO_DRAFTS:
            settled = (slot + 1 / SLOT_ROUNDS) * self.seconds
            return settled - now if now < settled else (slot + 1) * self.seconds - now
        until_drafting = (PERIOD_DRAFTING // 2 - slot - 1) % PERIOD_DRAFTING
        return (slot + 1 + until_drafting) * self.seconds - now


class LinearCost:
    """Seconds per step, ``fixed + each * size``, from a weighted least-squares fit.

    size: the number that the cost depends on, such as drafted tokens. Steps are added to a slot
    (`add`), and learned when it ends (`end_slot`).
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # means, central moments
        self._engine_seconds = self._engine_size = 0.0
        # (steps, size of each, seconds of each), the last ones of the current slot
        self._slot: deque[tuple[int, float, float]] = deque(maxlen=MOST_STEPS)

    @property
    def known(self) -> bool:
        """Whether at least one measurement has been recorded."""
        return self._weight > 0

    @property
    def average(self) -> float:
        """Average seconds per step."""
        return self._y

    @property
    def num_added(self) -> int:
        """How often steps were added to the current slot."""
        return len(self._slot)

    def add(self, size: float, seconds: float, *, steps: int = 1, engine: float = 0.0) -> None:
        """Add steps to the current slot.

        size, seconds: totals of the steps. engine: total by the draft engine's clock, in seconds.
        """
        seconds = max(seconds, 1e-9)  # the clock may not have advanced
        self._slot.append((steps, size / steps, seconds / steps))
        self._engine_seconds += engine
        self._engine_size += size

    def steps(self) -> list[tuple[int, float, float]]:
        """Return the steps of the current slot without the excess of pauses."""
        if not self._slot:
            return []
        usual = median(seconds for *_, seconds in self._slot)
        return [
            (steps, size, self._without_pause(size, seconds, usual))
            for steps, size, seconds in self._slot
        ]

    def end_slot(self, capacity: float, delay: float = 0.0) -> None:
        """End the slot and learn from its steps.

        capacity: length of the slot in seconds, times the number of running sequences. delay:
        seconds by which each step delayed others.
        """
        slot = self.steps()
        self.forget_slot()
        if not slot:
            return
        count = sum(steps for steps, *_ in slot)
        weight = min(1.0, sum(steps * seconds for steps, _, seconds in slot) / capacity)
        self._decay(1 - weight * (1 - SLOT_MEMORY))
        for steps, size, seconds in slot:
            self._learn(size, seconds + delay, weight * steps / count)

    def record(self, size: float, seconds: float, weight: float) -> None:
        """Learn from one step. weight: of the step, relative to a full slot's."""
        seconds = self._without_pause(size, seconds, seconds)
        self._decay(1 - weight * (1 - SLOT_MEMORY))
        self._learn(size, seconds, weight)

    def _without_pause(self, size: float, seconds: float, usual: float) -> float:
        """Return the duration of a step, at most LONGEST_STEP times the expected one.

        usual: expected duration if nothing has been learned.
        """
        fixed, each = self.coefficients() if self._y else (usual, 0.0)
        return min(seconds, LONGEST_STEP * (fixed + each * size))

    def _decay(self, keep: float) -> None:
        self._weight *= keep
        self._xx *= keep
        self._xy *= keep
        self._engine_seconds *= keep
        self._engine_size *= keep

    def _learn(self, x: float, y: float, weight: float) -> None:
        self._weight += weight
        dx, dy = x - self._x, y - self._y
        self._x += dx * weight / self._weight
        self._y += dy * weight / self._weight
        self._xx += weight * dx * (x - self._x)
        self._xy += weight * dx * (y - self._y)

    def coefficients(self) -> tuple[float, float]:
        """Return ``fixed`` and ``each``, both at least 0.

        The prior of ``each`` comes from the engine's clock. It adds 1 to the sum of squared
        deviations of the sizes.
        """
        expected = self._engine_seconds / max(1e-9, self._engine_size)
        each = max(0.0, (self._xy + expected) / (self._xx + 1.0))
        if self._x > 0:
            each = min(each, 0.9 * self._y / self._x)
        return self._y - each * self._x, each

    def forget_slot(self) -> None:
        self._slot.clear()


class LoadCosts:
    """Costs of steps under one load (number of running sequences).

    Before any experiment, two measurements are taken: rounds with drafts, and then plain calls.
    """

    def __init__(self) -> None:
        self.drafting = LinearCost()  # of a round, by drafted tokens
        self.lookup = LinearCost()  # of a round with a lookup draft, by draft tokens
        self.plain = LinearCost()  # of a token without drafts; its size is 0
        self.slots = Slots()
        self._slot = 0  # number of the slot whose steps are being counted
        self._mode = Mode.DRAFTING  # in that slot
        self._settled = 0.0  # steps that began earlier may overlap with steps of another mode

    @property
    def known(self) -> bool:
        """Whether both first measurements have ended."""
        return self.drafting.known and self.plain.known

    @property
    def first_tokens(self) -> int:
        """Length of the next draft during the first measurement."""
        return FIRST_DRAFTS[self.drafting.num_added % len(FIRST_DRAFTS)]

    @property
    def plain_speed(self) -> float:
        """Tokens per second of the target alone."""
        return 1 / max(1e-9, self.plain.average)

    def mode(self, now: float) -> Mode:
        """Return the mode at time ``now``, in seconds."""
        if not self.known:
            return Mode.NO_DRAFTS if self.drafting.known else Mode.DRAFTING
        return self.slots.mode(self.slots.number(now))

    def plain_tokens(self, now: float) -> int:
        """Return how many tokens the target may decode alone in one call, at least 1."""
        if not self.known:
            return FIRST_PLAIN_TOKENS if self.drafting.known else MAX_PLAIN_TOKENS
        fitting = self.slots.seconds_to_change(now) * self.plain_speed
        return int(min(max(1, fitting), MAX_PLAIN_TOKENS))

    def is_settled(self, began: float) -> bool:
        """Return whether all sequences have had the same mode since ``began``, in seconds."""
        return began >= self._settled

    def end_slot(self, now: float, running: int) -> bool:
        """Return whether a slot or a first measurement has ended. If so, learn from its steps.

        A first measurement ends after about one step per sequence.
        """
        was_known = self.known
        if was_known:
            has_ended = self.slots.number(now) != self._slot
        else:
            first = self.plain if self.drafting.known else self.drafting
            has_ended = first.num_added >= max(FIRST_STEPS, running)
        if not has_ended:
            return False
        self._learn(running)
        self._slot = self.slots.number(now)
        if self.mode(now) is not self._mode:
            self._mode = self.mode(now)
            self._settled = self._slot * self.slots.seconds if was_known else now
            if running > 1:  # rounds of other sequences end a little later
                self._settled += self.drafting.average
        return True

    def _learn(self, running: int) -> None:
        """Record the averages of the counted steps."""
        capacity, delay = running * self.slots.seconds, 0.0
        rounds = self.drafting.num_added + self.lookup.num_added
        if running > 1 and rounds:
            # Charge rounds with drafts for the time by which they delayed others' plain calls.
            if self.plain.known:
                plain = self.plain.steps()
                late = (steps * (seconds - self.plain.average) for steps, _, seconds in plain)
                delay = max(0.0, sum(late) / rounds)
            self.plain.forget_slot()
        self.drafting.end_slot(capacity, delay)
        self.lookup.end_slot(capacity, delay)
        self.plain.end_slot(capacity)
        if self.known:
            self.slots.choose_length(self.drafting.average)


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
