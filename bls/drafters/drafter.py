"""What proposes draft tokens. A drafter serves one request, and may ask an engine in turn."""

from __future__ import annotations

from collections.abc import Generator

from tandem.bls.effects import Draft, EngineAnswer, EngineCall, StepSeconds
from tandem.bls.errors import EngineCallError
from tandem.bls.sequence import Sequence

Proposal = Generator[EngineCall, EngineAnswer, Draft]


class Drafter:
    """Proposes the tokens that may follow a sequence, and learns what became of them."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Whether it is worth asking now. One that never can leaves the target alone for good."""
        return True

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Propose at most ``limit`` tokens (>= 1); an empty draft means plain target steps."""
        raise NotImplementedError

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Note how many tokens of a draft were accepted, and what the round took."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Note what the target took for tokens without drafts."""

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
