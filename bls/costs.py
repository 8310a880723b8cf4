"""What ``auto`` measures: costs of steps at one load. Also the size of plain calls.

A load is a number of running sequences. `draft_length` chooses drafts from these costs.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from enum import Enum
from statistics import median

SLOT_MEMORY = 0.9  # decay per full slot: about the last 10 slots count
CALL_WEIGHT = 0.1  # of a call that is learned at once: about the last 100 of these count
# A first measurement has at least this many rounds, with drafts of these lengths in turn, and then
# as many plain calls of this many tokens. Shorter calls cost more per token.
FIRST_STEPS, FIRST_DRAFTS, FIRST_PLAIN_TOKENS = 4, (2, 6), 3
MOST_STEPS = 10_000  # kept per slot; before the first draft, a slot has no end
LONGEST_STEP = 2.0  # times the expected duration; any excess is a pause of the machine
# Slots take SLOT seconds, or longer if SLOT_ROUNDS rounds don't fit. At first they are shorter, so
# that the first experiments are early: with drafts after 0.5, 2 and 5 seconds.
SLOT, LONGEST_SLOT, SLOT_ROUNDS = 0.25, 8.0, 4
SHORTER = 3  # periods with shorter slots: an eighth, a quarter and a half
# A load is measured for this many slots before other loads begin with its costs. They then count as
# much as this part of a slot, so that a load's own first slots outweigh them.
PRIOR_SLOTS, PRIOR_WEIGHT = 4, 0.1
PERIOD_NO_DRAFTS, PERIOD_DRAFTING = 128, 32  # slots between two experiments of the same kind


class Mode(Enum):
    """Drafting mode of all sequences during a slot."""

    BEST = 0  # each sequence does what its plan expects to be fastest
    NO_DRAFTS = 1  # the target decodes without drafts
    DRAFTING = 2


def mode_of(slot: int) -> Mode:
    """Return the mode of all sequences during a slot. slot: its number at this load, from 1."""
    if slot % PERIOD_NO_DRAFTS == 0:
        return Mode.NO_DRAFTS
    return Mode.DRAFTING if slot % PERIOD_DRAFTING == PERIOD_DRAFTING // 2 else Mode.BEST


class LinearCost:
    """Seconds per step, ``fixed + each * size``, from a weighted least-squares fit.

    size: the number that the cost depends on, such as drafted tokens. Steps are added to a slot
    (`add`), and learned when it ends (`end_slot`).
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # means, central moments
        self._slots_xx = self._slots_xy = 0.0  # moments of slots' averages
        self._engine_seconds = self._engine_size = 0.0
        # (steps, size of each, seconds of each), the last ones of the current slot
        self._slot: deque[tuple[int, float, float]] = deque(maxlen=MOST_STEPS)

    def as_prior(self) -> LinearCost:
        """Return a copy that counts at most as much as PRIOR_WEIGHT slots."""
        prior = copy(self)
        prior._slot = deque(maxlen=MOST_STEPS)
        prior._decay(PRIOR_WEIGHT / max(PRIOR_WEIGHT, self._weight))
        return prior

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
            self._decay(SLOT_MEMORY)
            return
        count = sum(steps for steps, *_ in slot)
        weight = min(1.0, sum(steps * seconds for steps, _, seconds in slot) / capacity)
        self._decay(1 - weight * (1 - SLOT_MEMORY))
        mean_size = sum(steps * size for steps, size, _ in slot) / count
        mean_seconds = delay + sum(steps * seconds for steps, _, seconds in slot) / count
        deviation = mean_size - self._x if self._weight else 0.0
        for steps, size, seconds in slot:
            self._learn(size, seconds + delay, weight * steps / count)
        self._slots_xx += weight * deviation * (mean_size - self._x)
        self._slots_xy += weight * deviation * (mean_seconds - self._y)

    def record(self, size: float, seconds: float, weight: float, *, engine: float = 0.0) -> None:
        """Learn from one step.

        weight: of the step, relative to a full slot's. engine: as in `add`.
        """
        seconds = self._without_pause(size, seconds, seconds)
        self._decay(1 - weight * (1 - SLOT_MEMORY))
        self._engine_seconds += engine
        self._engine_size += size
        self._learn(size, seconds, weight)

    def _without_pause(self, size: float, seconds: float, usual: float) -> float:
        """Return the duration of a step, at most LONGEST_STEP times the expected one.

        usual: expected duration if little has been learned.
        """
        fixed, each = self.coefficients() if self._weight > 2 * PRIOR_WEIGHT else (usual, 0.0)
        return min(seconds, LONGEST_STEP * (fixed + each * size))

    def _decay(self, keep: float) -> None:
        self._weight *= keep
        self._xx *= keep
        self._xy *= keep
        self._slots_xx *= keep
        self._slots_xy *= keep
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

        If calls share an engine's steps, a long draft delays all of them equally. Only a comparison
        of slots shows that, so it outweighs the comparison of steps. The prior of ``each`` comes
        from the engine's clock. It adds 1 to the sum of squared deviations of the sizes.
        """
        expected = self._engine_seconds / max(1e-9, self._engine_size)
        each = (self._xy + expected) / (self._xx + 1.0)
        each = max(0.0, (self._slots_xy + each) / (self._slots_xx + 1.0))
        if self._x > 0:
            each = min(each, 0.98 * self._y / self._x)
        return self._y - each * self._x, each

    def forget_slot(self) -> None:
        self._slot.clear()


class LoadCosts:
    """Costs of steps under one load (number of running sequences).

    They may begin with the costs of a lower load (`as_prior`). Otherwise, two first measurements
    are taken: rounds with drafts, and then plain calls. Time slots follow. A slot ends when a round
    begins after its time, so only time in which requests decode counts.
    """

    def __init__(self) -> None:
        self.drafting = LinearCost()  # of a round, by drafted tokens
        self.lookup = LinearCost()  # of a round with a lookup draft, by draft tokens
        self.plain = LinearCost()  # of a token without drafts; its size is 0
        self.calls = LinearCost()  # of calls without a draft, short ones too, by tokens
        self._slot, self._slot_end = 0, 0.0  # number of the current slot; 0: a first measurement
        self._slot_seconds = SLOT
        self._settled = 0.0  # steps that began earlier may overlap with steps of another mode

    def as_prior(self) -> LoadCosts:
        """Return costs to begin with under another load."""
        prior = LoadCosts()
        for name in ("drafting", "lookup", "plain", "calls"):
            setattr(prior, name, getattr(self, name).as_prior())
        prior._slot = 1
        return prior

    @property
    def known(self) -> bool:
        """Whether the costs have been measured, or began with another load's costs."""
        return self._slot > 0

    @property
    def can_be_prior(self) -> bool:
        """Whether another load may begin with these costs: several slots have ended."""
        return self._slot > PRIOR_SLOTS

    @property
    def first_tokens(self) -> int:
        """Length of the next draft during the first measurement."""
        rounds = self.drafting.num_added + self.lookup.num_added
        return FIRST_DRAFTS[rounds % len(FIRST_DRAFTS)]

    @property
    def plain_speed(self) -> float:
        """Tokens per second of the target alone."""
        return 1 / max(1e-9, self.plain.average)

    @property
    def call_overhead(self) -> float:
        """What a call without a draft costs in addition to its tokens, in tokens."""
        each_call, each_token = self.calls.coefficients()
        return each_call / max(1e-9, each_token)

    @property
    def mode(self) -> Mode:
        """Current mode of all sequences."""
        if self.known:
            return mode_of(self._slot)
        return Mode.NO_DRAFTS if self.drafting.known else Mode.DRAFTING

    def plain_tokens(self, now: float) -> int:
        """Return how many tokens the target may decode alone in one call, at least 1.

        A call ends before the next slot in which all sequences draft. In a slot without drafts, it
        ends with the slot. Rounds that began with drafts may last until about the end of the slot's
        first quarter, and nothing is measured before then. So a call that begins in that quarter
        ends with it.
        """
        if not self.known:
            return FIRST_PLAIN_TOKENS if self.drafting.known else MAX_PLAIN_TOKENS
        left, slot = self._slot_end - now, self._slot + 1
        if self.mode is Mode.NO_DRAFTS:
            settling = left - (1 - 1 / SLOT_ROUNDS) * self._slot_seconds
            left = settling if settling > 0 else left
        else:
            while mode_of(slot) is not Mode.DRAFTING:
                slot, left = slot + 1, left + self._slot_seconds
        return int(min(max(1, left * self.plain_speed), MAX_PLAIN_TOKENS))

    def is_settled(self, began: float) -> bool:
        """Return whether all sequences have had the same mode since ``began``, in seconds."""
        return began >= self._settled

    def end_slot(self, now: float, running: int) -> bool:
        """Return whether a slot or a first measurement has ended. If so, learn from its steps.

        A first measurement ends after about one step per sequence.
        """
        if self.known:
            has_ended = now >= self._slot_end
        else:
            first = self.plain if self.drafting.known else self.drafting
            has_ended = first.num_added >= max(FIRST_STEPS, running)
        if not has_ended:
            return False
        mode = self.mode
        alone = sum(steps * seconds for steps, _, seconds in self.plain.steps()) / running
        self._learn(running)
        if self.plain.known and self.drafting.known:
            self._slot += 1
            # A call without a draft may take as long as several slots.
            passed = alone / self._slot_seconds
            while passed >= 2 and self.mode is Mode.BEST:
                self._slot, passed = self._slot + 1, passed - 1
            usual = SLOT / 2 ** max(0, SHORTER - self._slot // PERIOD_DRAFTING)
            seconds = max(usual, SLOT_ROUNDS * self.drafting.average)
            self._slot_seconds = min(seconds, LONGEST_SLOT)
            self._slot_end = now + self._slot_seconds
        if self.mode is not mode:  # rounds of other sequences end a little later
            self._settled = now + (self.drafting.average if running > 1 else 0.0)
        return True

    def _learn(self, running: int) -> None:
        """Record the averages of the counted steps."""
        capacity, delay = running * max(self._slot_seconds, SLOT), 0.0
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


# Small enough that drafting resumes soon after a pause, large enough that calls cost little. Also
# limits the calls that `auto` requests.
MAX_PLAIN_TOKENS = 32
UNBOUNDED = 2**31 - 1
# Duration of a call in a stream. A call and its chunk cost up to 10 ms of processor time, which
# engines on the same processor need. So if tokens are slow, a call may take longer for FEW_TOKENS.
SECONDS_PER_CALL, MOST_SECONDS_PER_CALL, FEW_TOKENS = 0.1, 0.5, 4


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
            self.tokens = 1 if use_timings else FEW_TOKENS
        else:
            self.tokens = UNBOUNDED if in_engine else MAX_PLAIN_TOKENS

    def adapt(self, tokens: int, seconds: float) -> None:
        """Adjust the size after a call for ``tokens`` tokens took ``seconds``."""
        if self._adapts and tokens:
            speed = tokens / max(seconds, 1e-6)
            few = min(FEW_TOKENS, int(MOST_SECONDS_PER_CALL * speed))
            affordable = max(1, few, int(SECONDS_PER_CALL * speed))
            self.tokens = min(affordable, 2 * self.tokens, MAX_PLAIN_TOKENS)
