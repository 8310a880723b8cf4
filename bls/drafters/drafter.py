"""The interface of drafters. A drafter serves one request and may call the draft engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tandem.bls.ahead import AheadPlanner
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.errors import EngineCallError
from tandem.bls.ports import NO_DRAFT, Draft, Engines
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.lookup.pools import LookupPools

if TYPE_CHECKING:
    from tandem.bls.drafters.translation import Translator  # imports a large library


class DrafterHealth(Protocol):
    """Whether one sequence may call the draft model, and where its failures are reported."""

    @property
    def available(self) -> bool:
        """Whether the draft model may be called."""

    def failed(self, error: EngineCallError) -> None:
        """Pause the draft model for all requests."""

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        """Log why one request continues without drafts. The engine itself is healthy.

        without: what the request no longer has, a noun phrase.
        """


class DrafterContext(NamedTuple):
    """The arguments, besides the request, from which a drafter is created.

    draft_planner, ahead_planner, pools, translator: shared by all requests. load: function that
    returns the number of sequences that are decoding or about to start. own: the drafter's own
    settings (the defaults in its registry row with the profile's changes), set by `drafter_of`.
    """

    settings: LoopSettings
    health: DrafterHealth
    draft_planner: DraftPlanner
    ahead_planner: AheadPlanner | None = None  # None: drafting ahead is off
    pools: LookupPools | None = None  # None: requests share no answers
    translator: Translator | None = None  # None: the engines share a vocabulary
    load: Callable[[], int] = lambda: 1
    own: Any = None


class Drafter:
    """Proposes tokens that may follow a sequence, and learns how many were accepted."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Return whether to call ``propose`` now. If not, the target decodes alone."""
        return True

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:
        """Propose at most ``limit`` tokens (>= 1). If there are none, the target decodes alone."""
        raise NotImplementedError

    def draft_ahead(self, sequence: Sequence, draft: Draft, engines: Engines) -> bool:  # noqa: ARG002
        """Start drafting what may follow ``draft`` during its verification, if that pays.

        Returns whether a call began.
        """
        return False

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Learn how many tokens of a draft were accepted, and how long the round took."""

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Learn how long the target took to decode ``num_tokens`` tokens without a draft."""

    def failed(self, error: EngineCallError) -> None:
        """Handle the failure of an engine call that ``propose`` made."""

    def completed(self, sequence: Sequence) -> None:
        """Handle the end of an answer. Not called after a failure or cancellation."""


class NoDrafter(Drafter):
    """Never drafts, so the target decodes alone."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        return False

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:  # noqa: ARG002
        return NO_DRAFT


def make(request: Request, context: DrafterContext) -> Drafter:  # noqa: ARG001
    return NoDrafter()
