"""No drafts from the loop: the control, or an engine that drafts by itself."""

from __future__ import annotations

from tandem.bls.drafters.drafter import Drafter, DrafterContext, Proposal
from tandem.bls.effects import Draft
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


class NoDrafter(Drafter):
    """The target is called alone."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def propose(self, sequence: Sequence, limit: int) -> Proposal:  # noqa: ARG002
        """Propose nothing."""
        return Draft()
        yield  # a generator, as every drafter is


def make(request: Request, context: DrafterContext) -> Drafter:  # noqa: ARG001
    """Return the drafter of one request."""
    return NoDrafter()
