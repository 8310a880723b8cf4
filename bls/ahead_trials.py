"""Whether drafting ahead pays where several sequences decode, found out by trying.

What calls take tells what branches are worth to one sequence. It does not tell what they take from
the others: processor time of every process on the way, and of the draft engine. So all sequences
draft ahead for some rounds, then none, and the way with more tokens a second is kept; the other one
is tried again from time to time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL_ROUNDS = 16  # of each sequence, to try a way
TRIAL_EVERY = 64  # trials' time, for which the better way is kept
MEMORY = 0.5  # how much of what a way earned before outlives another stretch of it


@dataclass
class Earned:
    """Tokens of rounds of one way, and the seconds that these took, of all sequences together."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of one sequence."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a round."""
        self.tokens += tokens
        self.seconds += seconds

    def fade(self) -> None:
        """Let what comes now count for more."""
        self.tokens *= MEMORY
        self.seconds *= MEMORY


@dataclass
class Stretches:
    """What is done now under one load, and what both ways have earned there.

    ahead: whether all draft ahead. rounds_left: of all sequences together, until that may change.
    """

    ahead: bool = True
    rounds_left: int = 0
    trying: bool = True
    earned: dict[bool, Earned] = field(default_factory=dict)

    def observe(self, running: int, tokens: int, seconds: float, *, ahead: bool) -> None:
        """Count a round; one that began before the way changed belongs to no stretch."""
        if ahead != self.ahead:
            return
        if ahead not in self.earned:
            self.earned[ahead] = Earned()
            self.rounds_left = TRIAL_ROUNDS * running
        self.earned[ahead].add(tokens, seconds)
        self.rounds_left -= 1
        if self.rounds_left <= 0:
            self._change(running)

    def _change(self, running: int) -> None:
        """Begin another stretch: try what is unknown, or what has not been tried for long."""
        if len(self.earned) == 1 or not self.trying:
            self.ahead, self.trying = not self.ahead, True
        else:
            self.ahead = self.earned[True].rate >= self.earned[False].rate
            self.trying = False
        if self.ahead in self.earned:
            self.earned[self.ahead].fade()
        self.rounds_left = running * TRIAL_ROUNDS * (1 if self.trying else TRIAL_EVERY)


class AheadTrials:
    """Both ways under each load. Loads within a power of two are one."""

    def __init__(self) -> None:
        self._by_load: dict[int, Stretches] = {}

    def allow(self, running: int) -> bool:
        """Whether sequences may draft ahead now. One alone takes nothing from anybody."""
        return running < 2 or self._under(running).ahead

    def observe(self, running: int, tokens: int, seconds: float, *, ahead: bool) -> None:
        """Count a round: its tokens, and the seconds from the end of one emit to the next."""
        if running >= 2:
            self._under(running).observe(running, tokens, seconds, ahead=ahead)

    def _under(self, running: int) -> Stretches:
        return self._by_load.setdefault(running.bit_length(), Stretches())
