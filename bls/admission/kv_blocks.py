"""The KV blocks that a sequence needs in the caches of both engines."""

from __future__ import annotations

from tandem.bls.admission.admission import Reservation
from tandem.bls.drafters.drafter import DrafterHealth
from tandem.bls.errors import EngineCallError
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings


def needed_kv_blocks(request: Request, settings: LoopSettings) -> tuple[int, int]:
    """Return the number of KV blocks that a sequence may need in the target and in the draft."""
    tokens = len(request.prompt_ids) + request.max_tokens + request.longest_draft
    draft = settings.draft if request.drafter_kind.samples_from_draft_model else None
    draft_blocks = draft.kv_blocks_for(min(tokens, draft.max_seq_len)) if draft else 0
    return settings.target.kv_blocks_for(tokens), draft_blocks


class DraftKvAvailability:
    """The `DrafterHealth` of one sequence, which also needs blocks in the draft engine's cache."""

    def __init__(self, reservation: Reservation, health: DrafterHealth) -> None:
        self._reservation = reservation
        self._health = health

    @property
    def available(self) -> bool:
        return self._reservation.has_draft_blocks and self._health.available

    def failed(self, error: EngineCallError) -> None:
        self._health.failed(error)

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        self._health.rejected(error, without)
