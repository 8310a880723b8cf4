"""What steps cost under one load, and the experiments that show it.

What a sequence costs the others can't be seen in its own steps. So all sequences experiment at
once, in slots of the machine's monotonic clock: in one slot of a period no sequence drafts, in
another one all do. All processes share that clock, so several loops make the same experiments at
the same time without exchanging anything. A slot ends whatever happens in it.
"""

from __future__ import annotations

import math
from enum import Enum

SLOT_MEMORY = 0.9  # weight of older slots, per full slot: the last 10 count
SURPRISE = 1.5  # two slots that differ by this factor from what was expected outweigh older ones
SHORTEST_SLOT, LONGEST_SLOT = -2, 3  # a quarter of a second and 8 s, as powers of two
SLOT_ROUNDS = 4  # rounds that a slot has time for, at least
SHORTEST_PERIOD = 16  # slots
EXPERIMENTS_COST = 0.01  # share of the throughput that experiments of one kind may cost
SLOT_ALONE, SLOT_DRAFTING = 6, 2  # of each period; a longer period's are a shorter one's, too


class Mode(Enum):
    """What all sequences do in a slot."""

    BEST = 0
    ALONE = 1  # the target decodes without drafts
    DRAFTING = 2


class Line:
    """``seconds = fixed + each * tokens``: weighted least squares over the means of slots."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # means, central moments
        self._engine_seconds = self._engine_tokens = 0.0
        self._was_surprised = False
        self._forget_slot()

    @property
    def known(self) -> bool:
        """Whether any slot has ended in which steps were counted."""
        return self._weight > 0

    def of_neighbor(self) -> Line:
        """Return a copy for another load, which the first slots of its own outweigh."""
        line = Line()
        line.__dict__.update(self.__dict__)
        line._forget_slot()
        line._forget(0.1)
        return line

    def count(self, tokens: float, seconds: float, *, steps: int = 1, engine: float = 0.0) -> None:
        """Count steps in the slot. engine: seconds of ``tokens`` by the draft engine's clock."""
        self.steps += steps
        self._tokens += tokens
        self._seconds += seconds
        self._engine_seconds += engine
        self._engine_tokens += tokens

    def end_slot(self, capacity: float) -> None:
        """Learn the mean of the steps. capacity: seconds of all sequences in the slot."""
        if self._seconds > 0:
            weight = min(1.0, self._seconds / capacity)
            self.add(self._tokens / self.steps, self._seconds / self.steps, weight)
        self._forget_slot()

    def add(self, x: float, y: float, weight: float) -> None:
        """Learn that steps of ``x`` tokens took ``y`` seconds. weight: up to 1.

        A surprise is ignored until a second one follows: the machine may just have been paused.
        """
        expected = self.at(x)
        surprising = self._weight > 1 and not expected / SURPRISE < y < expected * SURPRISE
        first, self._was_surprised = surprising and not self._was_surprised, surprising
        if first:
            return
        self._forget(1 - weight * (1 - (SLOT_MEMORY / 4 if surprising else SLOT_MEMORY)))
        self._weight += weight
        dx, dy = x - self._x, y - self._y
        self._x += dx * weight / self._weight
        self._y += dy * weight / self._weight
        self._xx += weight * dx * (x - self._x)
        self._xy += weight * dy * (x - self._x)

    def fit(self) -> tuple[float, float]:
        """Return ``fixed`` and ``each``, neither below zero.

        The engine's own seconds per token count as much as a spread of one token between slots.
        """
        expected = self._engine_seconds / max(1e-9, self._engine_tokens)
        each = max(0.0, (self._xy + expected) / (self._xx + 1.0))
        if self._x > 0:
            each = min(each, 0.9 * self._y / self._x)
        return self._y - each * self._x, each

    def at(self, tokens: float) -> float:
        """Return the seconds of a step with so many tokens."""
        fixed, each = self.fit()
        return fixed + each * tokens

    def _forget(self, keep: float) -> None:
        self._weight *= keep
        self._xx *= keep
        self._xy *= keep
        self._engine_seconds *= keep
        self._engine_tokens *= keep

    def _forget_slot(self) -> None:
        self.steps = 0
        self._tokens = self._seconds = 0.0


class LoadCosts:
    """What steps cost while about so many sequences decode, and what is done in which slot.

    near: the load that is most similar to it, and known.
    """

    def __init__(self, near: LoadCosts | None = None) -> None:
        # Rounds by drafted tokens, rounds by copied tokens, and a token of the target alone.
        self.drafting: Line = near.drafting.of_neighbor() if near else Line()
        self.copying: Line = near.copying.of_neighbor() if near else Line()
        self.alone = Line()
        self.verification = 0.0  # seconds of the target's call in a round, on average
        self.slot: float = near.slot if near else 2.0**SHORTEST_SLOT  # seconds
        self._periods = {Mode.ALONE: SHORTEST_PERIOD, Mode.DRAFTING: SHORTEST_PERIOD}
        self._counted = 0  # the slot whose steps are being counted
        self._measured = False  # whether as many rounds as sequences were counted under this load

    def mode(self, now: float) -> Mode:
        """Return what is done at a time. A new load drafts first: nothing else shows the costs."""
        return self._mode(int(now / self.slot)) if self._measured else Mode.DRAFTING

    def is_settled(self, began: float, now: float) -> bool:
        """Return whether all sequences were in one mode from a while before a step to its end."""
        last = int(now / self.slot)
        first = int(began / self.slot - 1 / SLOT_ROUNDS)
        return all(self._mode(slot) is self._mode(last) for slot in range(first, last))

    def seconds_to_change(self, now: float) -> float:
        """Return how long the target may go on alone, so that its step belongs to one mode."""
        slot = int(now / self.slot)
        if self._mode(slot) is Mode.ALONE:
            settled = (slot + 1 / SLOT_ROUNDS) * self.slot
            return settled - now if now < settled else (slot + 1) * self.slot - now
        period = self._periods[Mode.DRAFTING]
        return (slot + 1 + (SLOT_DRAFTING - slot - 1) % period) * self.slot - now

    @property
    def seconds_alone(self) -> float:
        """Seconds per token of the target alone. Until it was measured: of a verification."""
        return max(1e-9, self.alone.at(0) if self.alone.known else self.verification)

    def count_verification(self, seconds: float) -> None:
        """Learn what a call of the target took in a round."""
        weight = 1 - SLOT_MEMORY if self.verification else 1.0
        self.verification += weight * (seconds - self.verification)

    def end_slot(self, now: float, running: int) -> bool:
        """Learn from the last slot if another one has begun; return whether it has."""
        slot = int(now / self.slot)
        if slot == self._counted:
            return False
        self._counted = slot
        self._learn(running)
        return True

    def measured_first(self, running: int) -> bool:
        """Learn as soon as a new load shows anything; return whether it just has."""
        if self._measured or self.drafting.steps < max(2, running):
            return False
        self._learn(running)
        return True

    def _learn(self, running: int) -> None:
        """Learn the means of the steps that were counted."""
        capacity = running * self.slot
        self._measured |= self.drafting.steps > 0
        if running > 1 and (self.drafting.steps or self.copying.steps):
            self.alone._forget_slot()  # it wasn't alone
        for line in (self.drafting, self.copying, self.alone):
            line.end_slot(capacity)

    def schedule(self, round_seconds: float, cost_alone: float, cost_drafting: float) -> None:
        """Choose the slots.

        round_seconds: of a round with a draft. cost_*: share of the throughput that is lost in an
        experiment of that kind. Powers of two have edges in common, also among several loops.
        """
        exponent = math.ceil(math.log2(max(1e-9, SLOT_ROUNDS * round_seconds)))
        self.slot = 2.0 ** min(max(SHORTEST_SLOT, exponent), LONGEST_SLOT)
        for mode, cost in ((Mode.ALONE, cost_alone), (Mode.DRAFTING, cost_drafting)):
            slots = max(SHORTEST_PERIOD, cost / EXPERIMENTS_COST)
            self._periods[mode] = 2 ** math.ceil(math.log2(slots))

    def _mode(self, slot: int) -> Mode:
        if slot % self._periods[Mode.ALONE] == SLOT_ALONE:
            return Mode.ALONE
        return Mode.DRAFTING if slot % self._periods[Mode.DRAFTING] == SLOT_DRAFTING else Mode.BEST
