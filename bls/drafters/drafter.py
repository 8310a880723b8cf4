"""What proposes draft tokens. A drafter serves one request, and may ask an engine in turn."""

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
    """Remembers over all requests whether the draft model answers."""

    @property
    def available(self) -> bool:
        """Whether the draft model may be asked."""

    def failed(self, error: EngineCallError) -> None:
        """Let the draft model rest."""

    def refused(self, error: EngineRefused) -> None:
        """Note that it refused one request's call; the engine itself is well."""


class DrafterContext(NamedTuple):
    """What a drafter is made from, in addition to the request.

    health, draft_planner: of the draft model, shared by all requests. own: the drafter's own
    settings, those of its row with what the profile changes in them.
    """

    settings: LoopSettings
    health: DrafterHealth
    draft_planner: DraftPlanner
    own: Any = None
    ahead_planner: AheadPlanner | None = None  # None: nothing is drafted ahead
    pools: LookupPools | None = None  # None: requests share no answers


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

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Note how many tokens of a draft were accepted, and what the round took."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Note what the target took for tokens without drafts."""

    def failed(self, error: EngineCallError) -> None:
        """Note that an engine call made by ``propose`` failed."""

    def completed(self, sequence: Sequence) -> None:
        """Note that the answer is complete; not called for one that failed or was cancelled."""
