"""Costs of steps at one load, which is a number of running sequences.

They are learned from averages over time slots (see `experiments`).
"""

from __future__ import annotations

from tandem.bls.draft_length.experiments import Mode, Slots
from tandem.bls.plain_call_size import MAX_PLAIN_TOKENS

SLOT_MEMORY = 0.9  # decay per full slot: about the last 10 slots count
FIRST_PLAIN_TOKENS = 3  # per call of the first measurement; shorter calls cost more per token
LONGEST_STEP = 2.0  # times the expected duration; any excess is a pause of the machine


class LinearCost:
    """Seconds per step, ``fixed + each * size``, from a weighted least-squares fit.

    size: the number that the cost depends on, such as drafted tokens. A caller records averages
    itself (`record`), or adds steps (`add_steps`) whose average `end_slot` records.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # means, central moments
        self._engine_seconds = self._engine_size = 0.0
        self.forget_slot()

    @property
    def known(self) -> bool:
        """Whether at least one measurement has been recorded."""
        return self._weight > 0

    @property
    def average(self) -> float:
        """Average seconds per step."""
        return self._y

    def add_steps(
        self, size: float, seconds: float, *, steps: int = 1, engine: float = 0.0
    ) -> None:
        """Add steps to the current slot.

        size, seconds: totals of the steps. engine: total by the draft engine's clock, in seconds.
        """
        self.steps += steps
        self._size += size
        seconds = max(seconds, 1e-9)  # the clock may not have advanced
        self.seconds += steps * self._without_pause(size / steps, seconds / steps)
        self._engine_seconds += engine
        self._engine_size += size

    def end_slot(self, capacity: float) -> None:
        """End the slot and record its averages.

        capacity: length of the slot in seconds, times the number of running sequences.
        """
        if self.steps:
            weight = min(1.0, self.seconds / capacity)
            self.record(self._size / self.steps, self.seconds / self.steps, weight)
        self.forget_slot()

    def record(self, x: float, y: float, weight: float) -> None:
        """Record that steps of size ``x`` took ``y`` seconds each. weight: at most 1."""
        y = self._without_pause(x, y)
        keep = 1 - weight * (1 - SLOT_MEMORY)
        self._weight = keep * self._weight + weight
        dx, dy = x - self._x, y - self._y
        self._x += dx * weight / self._weight
        self._y += dy * weight / self._weight
        self._xx = keep * self._xx + weight * dx * (x - self._x)
        self._xy = keep * self._xy + weight * dy * (x - self._x)
        self._engine_seconds *= keep
        self._engine_size *= keep

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

    def _without_pause(self, x: float, y: float) -> float:
        """Return the duration of a step of size ``x``, at most LONGEST_STEP times the expected."""
        fixed, each = self.coefficients()
        return min(y, LONGEST_STEP * (fixed + each * x)) if self._y else y

    def forget_slot(self) -> None:
        self.steps = 0
        self._size = self.seconds = 0.0


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
            return FIRST_PLAIN_TOKENS
        fitting = self.slots.seconds_to_change(now) * self.plain_speed
        return int(min(max(1, fitting), MAX_PLAIN_TOKENS))

    def is_settled(self, began: float) -> bool:
        """Return whether all sequences have had the same mode since ``began``, in seconds."""
        return began >= self._settled

    def end_slot(self, now: float, running: int) -> bool:
        """Return whether a slot or a first measurement has ended. If so, learn from its steps.

        A first measurement ends with its slot, or earlier after about one step per sequence.
        """
        was_known, slot = self.known, self.slots.number(now)
        first = self.plain if self.drafting.known else self.drafting
        first_ends = not was_known and first.steps >= max(2, running)
        if slot == self._slot and not first_ends:
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
        capacity = running * self.slots.seconds
        if running > 1 and (self.drafting.steps or self.lookup.steps):
            self._charge_delays()
        for cost in (self.drafting, self.lookup, self.plain):
            cost.end_slot(capacity)
        if self.known:
            self.slots.choose_length(self.drafting.average)

    def _charge_delays(self) -> None:
        """Charge rounds with drafts for the time by which they delayed others' plain calls."""
        delay = self.plain.seconds - self.plain.steps / self.plain_speed
        if self.plain.known and delay > 0:
            drafting = self.drafting.seconds + self.lookup.seconds
            for cost in (self.drafting, self.lookup):
                cost.seconds *= 1 + delay / drafting
        self.plain.forget_slot()
