"""What proposes draft tokens. A drafter serves one request, and may ask an engine in turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tandem.bls.effects import Draft, EngineAnswer, EngineCall, Settle
from tandem.bls.errors import EngineCallError
from tandem.bls.sequence import Sequence

Proposal = Generator[EngineCall | Settle, Any, Draft]
StepsAhead = Generator[EngineCall, EngineAnswer, Any]


class Drafter:
    """Proposes the tokens that may follow a sequence, and learns what became of them."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Whether it is worth asking now. One that never can leaves the target alone for good."""
        return True

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Propose at most ``limit`` tokens (>= 1); an empty draft means plain target steps."""
        raise NotImplementedError

    def draft_ahead(self, sequence: Sequence, draft: Draft) -> StepsAhead | None:  # noqa: ARG002
        """Return steps that draft on while ``draft`` is verified; None where that is not worth it.

        They may run on another thread, and must not look at what the loop changes meanwhile.
        """
        return None

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Note how many tokens of a draft were accepted, and how long the target took."""

    def observe_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Note how long the target took for tokens without drafts."""

    def failed(self, error: EngineCallError) -> None:
        """Note that an engine call made by ``propose`` failed."""


class NoDrafter(Drafter):
    """The target alone: the control, or an engine that drafts by itself."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def propose(self, sequence: Sequence, limit: int) -> Proposal:  # noqa: ARG002
        """Propose nothing."""
        return Draft()
        yield  # a generator, as every drafter is
