"""Reads the inputs for a request's drafts: drafter, length and verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tandem.bls.drafters.registry import (
    BASELINE,
    DRAFTERS,
    HYBRID,
    PROMPT_LOOKUP,
    DrafterKind,
)
from tandem.bls.errors import BadRequest
from tandem.bls.parsing.inputs import PromptInputs, quote
from tandem.bls.request import Request
from tandem.bls.settings import AUTO, DRAFT_AHEAD, LoopSettings
from tandem.contract import entry as tensors
from tandem.sampling.params import Bounds

# Inputs that affect drafts of the loop.
DRAFTING = (
    tensors.NUM_DRAFT_TOKENS,
    tensors.PROMPT_LOOKUP_NUM_TOKENS,
    tensors.MAX_MATCHING_NGRAM_SIZE,
    tensors.LOOKUP_POOL,
    tensors.USE_DRAFT_LOGITS,
    tensors.DRAFT_ACCEPTANCE_THRESHOLD,
)
IN_ENGINE = "isn't supported: the target drafts by itself"
MAX_POOL_NAME_BYTES = 256  # as UTF-8


class DraftInputs:
    """Reads the draft inputs of a prompt."""

    def __init__(self, inputs: PromptInputs, settings: LoopSettings) -> None:
        self._inputs = inputs
        self._settings = settings

    def apply(self, request: Request) -> Request:
        """Return the request with its drafter, draft length and verification set."""
        settings = self._settings
        drafter = self._drafter()
        longest = settings.target.max_draft_len
        draft_len = self._inputs.integer(tensors.NUM_DRAFT_TOKENS, AUTO, longest)
        copy_len = self._inputs.integer(tensors.PROMPT_LOOKUP_NUM_TOKENS, 1, longest)
        ngram = self._inputs.integer(tensors.MAX_MATCHING_NGRAM_SIZE, 1, settings.max_ngram_size)
        threshold = self._threshold()
        ahead = self._draft_ahead(drafter, guided=request.guide is not None)
        pool = self._lookup_pool()
        if drafter.in_engine and draft_len == 0:
            raise BadRequest(f"input '{tensors.NUM_DRAFT_TOKENS}' {IN_ENGINE}")
        if drafter is BASELINE or draft_len == 0:
            return replace(request, drafter=BASELINE.name)
        self._inputs.reject_unless(
            drafter.looks_up,
            (
                tensors.PROMPT_LOOKUP_NUM_TOKENS,
                tensors.MAX_MATCHING_NGRAM_SIZE,
                tensors.LOOKUP_POOL,
            ),
            f"requires '{tensors.DRAFTER}' to be {_names_of_drafters(lambda kind: kind.looks_up)}",
        )
        use_logits = self._uses_logits(drafter)
        predicted = 0
        if drafter.looks_up and self._predicts():
            predicted = copy_len or (longest if draft_len in (None, AUTO) else draft_len)
        return replace(
            request,
            drafter=drafter.name,
            draft_len=settings.draft_len if draft_len is None else draft_len,
            prompt_lookup_num_tokens=self._lookup_length(copy_len, draft_len, drafter),
            max_matching_ngram_size=ngram or settings.max_matching_ngram_size,
            lookup_pool=pool,
            prediction_num_tokens=predicted,
            use_draft_logits=use_logits,
            draft_acceptance_threshold=threshold if use_logits else None,
            draft_ahead=ahead,
        )

    def _lookup_length(
        self, copy_len: int | None, draft_len: int | None, drafter: DrafterKind
    ) -> int:
        """Return the maximum length of a copied draft.

        That is the request's limit for copied drafts, or else its limit for all drafts. If the
        draft length is AUTO and the drafter has a draft model, AUTO also chooses the length of
        copied drafts, so the engine's maximum is returned.
        """
        if copy_len is not None:
            return copy_len
        settings = self._settings
        length = settings.draft_len if draft_len is None else draft_len
        if drafter.looks_up and not drafter.only_looks_up and length == AUTO:
            return settings.target.max_draft_len
        return settings.prompt_lookup_num_tokens if draft_len in (None, AUTO) else draft_len

    def _drafter(self) -> DrafterKind:
        names = self._inputs.strings(tensors.DRAFTER)
        name = names[0] if names and names[0] else self._settings.drafter
        known = self._settings.drafters
        if name not in known:
            raise BadRequest(
                f"input '{tensors.DRAFTER}' must be one of {', '.join(known)} in this deployment; "
                f"got {quote(name)}"
            )
        drafter = DRAFTERS[name]
        self._inputs.reject_unless(
            not drafter.in_engine,
            DRAFTING,
            IN_ENGINE,
        )
        if self._predicts() and not (names and names[0]):
            return self._for_prediction(drafter)
        return drafter

    def _predicts(self) -> bool:
        """Return whether the prompt has a nonempty prediction."""
        has_text = any(self._inputs.values(tensors.PREDICTION))
        return has_text or len(self._inputs.values(tensors.PREDICTION_IDS)) > 0

    def _for_prediction(self, drafter: DrafterKind) -> DrafterKind:
        """Return the deployment's preferred drafter that copies, or its default drafter."""
        known = self._settings.drafters
        choice = (drafter, HYBRID, PROMPT_LOOKUP)
        return next((k for k in choice if k.looks_up and k.name in known), drafter)

    def _draft_ahead(self, drafter: DrafterKind, *, guided: bool) -> bool | None:
        """Return whether to draft ahead; None: only if it saves time."""
        values = self._inputs.strings(tensors.DRAFT_AHEAD)
        if not values or not values[0]:
            return self._settings.draft_ahead
        if values[0] not in DRAFT_AHEAD:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' must be one of {', '.join(DRAFT_AHEAD)}; "
                f"got {quote(values[0])}"
            )
        ahead = DRAFT_AHEAD[values[0]]
        if ahead and not drafter.drafts_ahead:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' requires '{tensors.DRAFTER}' to be "
                f"{_names_of_drafters(lambda kind: kind.drafts_ahead)}"
            )
        if ahead and not self._settings.draft_branches:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' can't be true: this deployment's draft engine "
                "doesn't draft ahead; send auto or false"
            )
        if ahead and guided:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' can't be true in a guided request; send auto or "
                "false"
            )
        return ahead

    def _lookup_pool(self) -> str | None:
        """Return the name of the lookup pool, or None."""
        names = self._inputs.values(tensors.LOOKUP_POOL)
        if not len(names):
            return None
        if not self._settings.max_pool_tokens:
            raise BadRequest(
                f"input '{tensors.LOOKUP_POOL}' isn't supported by this deployment: its profile "
                "sets decoding.prompt_lookup.max_pool_tokens to 0"
            )
        if not 1 <= len(names[0]) <= MAX_POOL_NAME_BYTES:
            raise BadRequest(
                f"input '{tensors.LOOKUP_POOL}' must have between 1 and {MAX_POOL_NAME_BYTES} "
                f"bytes; got {len(names[0])}"
            )
        return self._inputs.strings(tensors.LOOKUP_POOL)[0]

    def _uses_logits(self, drafter: DrafterKind) -> bool:
        """Return whether drafts come with the logits that they were sampled from."""
        samples = drafter.samples_from_draft_model
        self._inputs.reject_unless(
            samples,
            (tensors.USE_DRAFT_LOGITS,),
            f"requires '{tensors.DRAFTER}' to be "
            f"{_names_of_drafters(lambda kind: kind.samples_from_draft_model)}: "
            f"'{drafter.name}' has no logits",
        )
        uses = samples and self._inputs.flag(
            tensors.USE_DRAFT_LOGITS, self._settings.use_draft_logits
        )
        if uses and self._settings.draft_tokenizer:
            raise BadRequest(
                f"input '{tensors.USE_DRAFT_LOGITS}' must be false: the draft model has a "
                "vocabulary of its own, so its logits don't fit the target's"
            )
        return uses and self._settings.draft_returns_logits  # else ids are compared

    def _threshold(self) -> float | None:
        """Return the acceptance threshold of the request, or the deployment's default."""
        threshold = self._inputs.number(tensors.DRAFT_ACCEPTANCE_THRESHOLD, Bounds(0, 1))
        self._inputs.reject_unless(
            self._settings.draft_returns_logits,
            (tensors.DRAFT_ACCEPTANCE_THRESHOLD,),
            "isn't supported: the draft engine returns no logits",
        )
        self._inputs.reject_unless(
            self._inputs.flag(tensors.USE_DRAFT_LOGITS, self._settings.use_draft_logits),
            (tensors.DRAFT_ACCEPTANCE_THRESHOLD,),
            f"requires '{tensors.USE_DRAFT_LOGITS}' to be true",
        )
        return self._settings.draft_acceptance_threshold if threshold is None else threshold


def _names_of_drafters(fit: Callable[[DrafterKind], bool]) -> str:
    """Return the names of the drafters that satisfy ``fit``, for an error message."""
    return " or ".join(kind.name for kind in DRAFTERS.values() if fit(kind))
