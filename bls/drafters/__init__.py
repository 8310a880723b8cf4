"""Whatever proposes draft tokens: a module each, and here the choice among them."""

from __future__ import annotations

from tandem.bls.draft_ahead import AheadStatistics, draft_ahead_of
from tandem.bls.draft_length import AdaptiveLength, DraftLength, DraftStatistics, FixedLength
from tandem.bls.drafters.draft_model import DrafterHealth, DraftModel
from tandem.bls.drafters.drafter import Drafter, NoDrafter
from tandem.bls.drafters.hybrid import Hybrid
from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.request import Request
from tandem.bls.seeds import lengths_decide_text
from tandem.bls.settings import AUTO, LoopSettings

# Instead of AUTO, where a seed has to repeat a text and lengths would change it: see `bls.seeds`.
SEEDED_LENGTH = 5


def drafter_of(
    request: Request,
    settings: LoopSettings,
    health: DrafterHealth,
    draft_statistics: DraftStatistics,
    ahead_statistics: AheadStatistics | None = None,
) -> Drafter:
    """Return the drafter that a request asks for.

    health, draft_statistics, ahead_statistics: of the draft model, shared by all requests. Without
    the last one nothing is drafted ahead.
    """
    if request.drafter == "prompt_lookup":
        return PromptLookup(request, settings)
    if request.drafter not in ("draft_model", "hybrid") or settings.draft is None:
        return NoDrafter()
    length = _length_of(request, settings, draft_statistics)
    ahead = draft_ahead_of(request, settings, ahead_statistics)
    draft_model = DraftModel(settings.draft, settings.target, health, length, ahead)
    if request.drafter == "hybrid":
        return Hybrid(PromptLookup(request, settings), draft_model, settings)
    return draft_model


def _length_of(
    request: Request, settings: LoopSettings, draft_statistics: DraftStatistics
) -> DraftLength:
    if request.draft_len != AUTO:
        return FixedLength(request.draft_len)
    if lengths_decide_text(request, settings):
        return FixedLength(min(SEEDED_LENGTH, request.max_draft_len))
    return AdaptiveLength(draft_statistics)
