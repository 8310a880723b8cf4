"""A custom drafter that proposes the last tokens again.

It is right in horizontal lines, tables and lists of zeros. repeat.yaml is a profile with it:

    tandem up --profile examples/drafters/repeat.yaml
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.bls.drafters.drafter import Drafter, DrafterContext
from tandem.bls.drafters.registry import DrafterKind
from tandem.bls.ports import Draft, Engines
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


@dataclass(frozen=True)
class RepeatSettings:
    """The settings in a profile. period: number of tokens to repeat."""

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
    """The drafter of one request."""

    def __init__(self, period: int) -> None:
        self._period = period

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:  # noqa: ARG002
        """Propose at most ``limit`` tokens, which the target verifies."""
        return Draft(sequence.context[-self._period :][:limit])


def make(request: Request, context: DrafterContext) -> Repeat:  # noqa: ARG001
    """Return the drafter for a request."""
    return Repeat(context.own.period)
