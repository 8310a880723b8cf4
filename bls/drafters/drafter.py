"""What proposes draft tokens. A drafter serves one request, and may call the draft engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from tandem.bls.draft_ahead.ahead_planner import AheadPlanner
from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.effects import AwaitAhead, Draft, EngineAnswer, EngineCall, StepSeconds
from tandem.bls.errors import EngineCallError, EngineRefused
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.lookup.pools import LookupPools

Proposal = Generator[EngineCall | AwaitAhead, Any, Draft]
StepsAhead = Generator[EngineCall, EngineAnswer, Any]


class DrafterHealth(Protocol):
    """Whether the draft model answers; shared by all requests."""

    @property
    def available(self) -> bool:
        """Whether the draft model may be called."""

    def failed(self, error: EngineCallError) -> None:
        """Pause the draft model."""

    def refused(self, error: EngineRefused) -> None:
        """Log that it rejected one request's call; the engine itself is well."""


class DrafterContext(NamedTuple):
    """What a drafter is made from, in addition to the request.

    health, draft_planner, ahead_planner: of the draft model, shared by all requests. own: the
    drafter's own settings: the defaults of its row with the profile's changes.
    """

    settings: LoopSettings
    health: DrafterHealth
    draft_planner: DraftPlanner
    own: Any = None
    ahead_planner: AheadPlanner | None = None  # None: nothing is drafted ahead
    pools: LookupPools | None = None  # None: requests share no answers


class Drafter:
    """Proposes the tokens that may follow a sequence, and learns how many were accepted."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Return whether ``propose`` is worth calling now. If not, the target decodes alone."""
        return True

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Propose at most ``limit`` tokens (>= 1); an empty draft means plain target steps."""
        raise NotImplementedError

    def draft_ahead(self, sequence: Sequence, draft: Draft) -> StepsAhead | None:  # noqa: ARG002
        """Return steps that draft on while ``draft`` is verified; None: it isn't worth it.

        They may run on another thread, so they must not read what the loop changes meanwhile.
        """
        return None

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Learn how many tokens of a draft were accepted, and what the round took."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Learn what the target took for tokens without a draft."""

    def failed(self, error: EngineCallError) -> None:
        """Note that an engine call made by ``propose`` failed."""

    def completed(self, sequence: Sequence) -> None:
        """Note that the answer is complete; not called for one that failed or was cancelled."""
