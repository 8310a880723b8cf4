"""A fixed draft length."""

from __future__ import annotations

from tandem.bls.ports import Draft, DraftPlan
from tandem.bls.request import Request
from tandem.bls.seeds import output_depends_on_lengths
from tandem.bls.settings import AUTO, LoopSettings

# Replaces `auto` if the output for a seed depends on draft lengths.
SEEDED_LENGTH = 5


class FixedLength:
    """Uses the same draft length in every round. `AutoLength` documents the methods."""

    def __init__(self, num_tokens: int) -> None:
        self.length_ahead = num_tokens

    def plan(self, limit: int) -> DraftPlan:
        return DraftPlan(min(limit, self.length_ahead))

    def lookup_length(self, match: Draft) -> int:
        return len(match)

    def observe_lookup(self, match: Draft, num_right: int) -> None:
        """Do nothing."""

    def allows_drafts(self) -> bool:
        return True

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Do nothing."""

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""


def fixed_length(request: Request, settings: LoopSettings) -> FixedLength | None:
    """Return the draft length of a request, or None if `auto` chooses its lengths."""
    if request.draft_len != AUTO:
        return FixedLength(request.draft_len)
    if output_depends_on_lengths(request, settings):
        return FixedLength(min(SEEDED_LENGTH, request.max_draft_len))
    return None
