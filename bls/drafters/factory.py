"""Creates the drafter for a request."""

from __future__ import annotations

from tandem.bls.drafters.drafter import Drafter, DrafterContext
from tandem.bls.drafters.guarded import GuardedDrafter
from tandem.bls.drafters.registry import BUILT_IN
from tandem.bls.request import Request
from tandem.bls.statistics import Statistics


def drafter_of(request: Request, context: DrafterContext, statistics: Statistics) -> Drafter:
    """Return the drafter that a request selects. statistics: of the request."""
    kind = request.drafter_kind
    context = context._replace(own=kind.settings)
    if kind.name in BUILT_IN:
        return kind.make(request, context)
    return GuardedDrafter(kind, request, context, statistics)
