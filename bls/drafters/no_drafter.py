"""A drafter that never drafts, for the baseline and for engines that draft by themselves."""

from __future__ import annotations

from tandem.bls.drafters.drafter import Drafter, DrafterContext
from tandem.bls.ports import NO_DRAFT, Draft, Engines
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


class NoDrafter(Drafter):
    """Never drafts, so the target decodes alone."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        return False

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:  # noqa: ARG002
        return NO_DRAFT


def make(request: Request, context: DrafterContext) -> Drafter:  # noqa: ARG001
    return NoDrafter()
