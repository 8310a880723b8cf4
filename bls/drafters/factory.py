"""Creates the drafter for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.bls.draft_ahead.ahead_planner import AheadPlanner
from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.drafters.drafter import Drafter, DrafterContext, DrafterHealth
from tandem.bls.drafters.guarded import GuardedDrafter
from tandem.bls.drafters.registry import BASELINE, BUILT_IN, DRAFTERS
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings
from tandem.lookup.pools import LookupPools

if TYPE_CHECKING:
    from tandem.bls.drafters.translation import Translator


def drafter_of(
    request: Request,
    settings: LoopSettings,
    health: DrafterHealth,
    draft_planner: DraftPlanner,
    ahead_planner: AheadPlanner | None = None,
    *,
    pools: LookupPools | None = None,
    translator: Translator | None = None,
) -> Drafter:
    """Return the drafter that a request selects. `DrafterContext` documents the arguments."""
    kind = DRAFTERS[request.drafter]
    if kind.samples_from_draft_model and settings.draft is None:
        kind = BASELINE
    context = DrafterContext(
        settings, health, draft_planner, kind.settings, ahead_planner, pools, translator
    )
    if kind.name in BUILT_IN:
        return kind.make(request, context)
    return GuardedDrafter(kind, request, context)
