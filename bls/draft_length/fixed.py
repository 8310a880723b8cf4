"""What a draft model asks about lengths, and the answer that never changes."""

from __future__ import annotations

from typing import Protocol

from tandem.bls.effects import Draft, DraftPlan, StepSeconds

# Replaces `auto` if a seed has to repeat a text that lengths would change (`bls.exactness.seeds`).
SEEDED_LENGTH = 5


class DraftLength(Protocol):
    """Decides on the length of a draft model's next draft."""

    @property
    def length_ahead(self) -> int:
        """Tokens per branch that are worth drafting ahead, if they are free."""

    def plan(self, limit: int, *, ahead: bool = False) -> DraftPlan:
        """Decide; ``limit`` (>= 1) is what fits.

        ahead: branches are drafted while this draft is verified; the limit is the best length then.
        """

    def copy_length(self, copied: Draft) -> int:
        """Return how many tokens of a copy to verify; 0: ``plan`` has something better."""

    def allows_drafts(self) -> bool:
        """Return whether any draft may be made now, also ahead of its round."""

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Learn from a round. The draft may also be a copy."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Learn from a target call without a draft."""


class FixedLength:
    """The same length in every round."""

    def __init__(self, num_tokens: int) -> None:
        self.length_ahead = num_tokens

    def plan(self, limit: int, *, ahead: bool = False) -> DraftPlan:  # noqa: ARG002
        """Draft as many as fit."""
        return DraftPlan(min(limit, self.length_ahead))

    def copy_length(self, copied: Draft) -> int:
        """Verify all of it."""
        return len(copied)

    def allows_drafts(self) -> bool:
        """Always."""
        return True

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Nothing changes."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Nothing changes."""
