"""Whatever proposes draft tokens. A drafter is asked once a round and may ask an engine in turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from bls.effects import Draft, EngineAnswer, EngineCall
from bls.errors import EngineError
from bls.seeds import proposal_seed
from bls.sequence import Sequence
from bls.settings import LoopSettings


class Drafter(Protocol):
    """Proposes the tokens that may follow a sequence."""

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether it is worth asking now. One that never can leaves the target alone for good."""

    def propose(self, sequence: Sequence, limit: int) -> Generator[EngineCall, EngineAnswer, Draft]:
        """Propose at most ``limit`` tokens (>= 1); an empty draft means a plain target step."""

    def failed(self, error: EngineError) -> None:
        """Hear that an engine call made by ``propose`` failed."""


class DrafterHealth(Protocol):
    """Remembers over all requests whether the draft model answers."""

    @property
    def available(self) -> bool:
        """Whether the draft model may be asked."""

    def failed(self, error: EngineError) -> None:
        """Let the draft model rest."""


class NoDrafter:
    """The control: the target alone."""

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def propose(self, sequence: Sequence, limit: int) -> Generator[EngineCall, EngineAnswer, Draft]:  # noqa: ARG002
        """Propose nothing."""
        return Draft()
        yield  # a generator, as every drafter is

    def failed(self, error: EngineError) -> None:
        """It calls no engine, so none can fail."""


class DraftModel:
    """A small model that shares the target's vocabulary (Leviathan et al., arXiv:2211.17192)."""

    def __init__(self, settings: LoopSettings, health: DrafterHealth) -> None:
        self._settings = settings
        self._health = health

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the draft engine is well and has room for one more token."""
        return self._health.available and self._room(sequence) > 0

    def failed(self, error: EngineError) -> None:
        """Let the draft model rest."""
        self._health.failed(error)

    def propose(self, sequence: Sequence, limit: int) -> Generator[EngineCall, EngineAnswer, Draft]:
        """Ask the draft engine for the next ``limit`` tokens.

        It is given no end id: an engine that stops there drops the token, and the target could not
        confirm it. What was drafted behind an end of sequence is cut instead; not in logits mode,
        where tokens and logits must keep the same length (the target's end of sequence ends it).
        """
        request = sequence.request
        answer = yield EngineCall(
            engine="draft",
            context=sequence.context,
            max_new_tokens=min(limit, self._room(sequence)),
            seed=proposal_seed(
                request.sampling.seed,
                len(sequence.context),
                keyed=self._settings.draft_keyed_randomness,
                use_draft_logits=request.use_draft_logits,
            ),
            ban_end_ids=sequence.tokens_owed > 0,
            wants_logits=request.use_draft_logits,
        )
        if request.use_draft_logits:
            return Draft(answer.tokens, answer.logits)
        end = sequence.first_end(answer.tokens)
        return Draft(answer.tokens if end is None else answer.tokens[: end + 1])

    def _room(self, sequence: Sequence) -> int:
        return self._settings.draft_max_seq_len - len(sequence.context)
