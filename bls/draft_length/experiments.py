"""Experiments that measure the cost of drafting under load.

The duration of a sequence's steps doesn't show how much they slow down other sequences. So all
sequences experiment together, in time slots. In some slots no sequence drafts, in others all of
them do. All processes share the machine's monotonic clock, so loops whose slots have the same
length run the same experiments at the same time without exchanging messages.
"""

from __future__ import annotations

import math
from enum import Enum

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
