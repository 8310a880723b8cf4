"""Whatever proposes draft tokens: a module each, and here the choice among them."""

from __future__ import annotations

from bls.draft_length import AdaptiveLength, DraftLength, Experience, FixedLength
from bls.drafters.draft_model import DrafterHealth, DraftModel
from bls.drafters.drafter import Drafter, NoDrafter
from bls.drafters.hybrid import Hybrid
from bls.drafters.prompt_lookup import PromptLookup
from bls.request import Request
from bls.settings import AUTO, LoopSettings


def drafter_of(
    request: Request, settings: LoopSettings, health: DrafterHealth, experience: Experience
) -> Drafter:
    """Return the drafter that a request asks for.

    health, experience: of the draft model, shared by all requests.
    """
    if request.drafter == "prompt_lookup":
        return PromptLookup(request, settings)
    if request.drafter not in ("draft_model", "hybrid"):
        return NoDrafter()
    draft_model = DraftModel(settings, health, _length_of(request, experience))
    if request.drafter == "hybrid":
        return Hybrid(PromptLookup(request, settings), draft_model, settings)
    return draft_model


def _length_of(request: Request, experience: Experience) -> DraftLength:
    if request.draft_len == AUTO:
        return AdaptiveLength(experience)
    return FixedLength(request.draft_len)
