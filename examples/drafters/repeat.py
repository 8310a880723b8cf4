"""A drafter of a deployment's own: it proposes the last tokens once more.

That is right in rulers, tables and lists of zeros. A profile names this file:

    drafters:
      - module: repeat.py
        settings: {period: 2}
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.bls.drafters.drafter import Drafter, DrafterContext, Proposal
from tandem.bls.drafters.registry import DrafterKind
from tandem.bls.effects import Draft
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


@dataclass(frozen=True)
class RepeatSettings:
    """What a profile may set. period: how many tokens repeat."""

    period: int = 4

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period must be at least 1; got {self.period}")


DRAFTER = DrafterKind(
    name="repeat",
    description="the last tokens again",
    module=__name__,
    settings=RepeatSettings(),
)


class Repeat(Drafter):
    """Serves one request."""

    def __init__(self, period: int) -> None:
        self._period = period

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Propose at most ``limit`` tokens; the target verifies them."""
        return Draft(sequence.context[-self._period :][:limit])
        yield  # a generator: one that uses the draft model yields an EngineCall


def make(request: Request, context: DrafterContext) -> Repeat:  # noqa: ARG001
    """Return the drafter of one request."""
    return Repeat(context.own.period)
