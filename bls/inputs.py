"""Reads a request's inputs: checks their names, sizes, shapes and bounds.

Triton doesn't reject invalid requests: it accepts a batch without a required input, wraps numbers
that are too large, and passes unknown keys on as parameters. Each error names the input and the
valid values.

Guides and the inputs for drafts (drafter, length and verification) have NVIDIA's names.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import (
    BASELINE,
    DRAFTERS,
    HYBRID,
    PROMPT_LOOKUP,
    DrafterKind,
)
from tandem.bls.errors import BadRequest, GuideRejected
from tandem.bls.request import Request
from tandem.bls.settings import AUTO, DRAFT_AHEAD, LoopSettings, RequestLimits
from tandem.contract import entry as tensors
from tandem.contract.guide import KINDS, Guide
from tandem.contract.tensor import Tensor
from tandem.sampling.params import Bounds

# Request parameters that Triton's front ends may add.
TRITON_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)

WORD_LISTS = (tensors.STOP_WORDS, tensors.BAD_WORDS, tensors.EMBEDDING_BIAS_WORDS)
MAX_PARAMETERS_BYTES = 64 * 1024
MAX_QUOTE_CHARS = 40  # maximum number of characters of client text in an error
NOTHING: NDArray[Any] = np.empty(0)


class PromptInputs:
    """The inputs of one prompt by name, [1, ...]: its row of each input array."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], row: int) -> None:
        self._arrays = {name: array[row : row + 1] for name, array in arrays.items()}

    def __contains__(self, tensor: Tensor) -> bool:
        """Return whether the client sent this input."""
        return tensor in self._arrays

    def values(self, tensor: Tensor) -> NDArray[Any]:
        """Return a view of the values, [n]; empty if the input is missing."""
        array = self._arrays.get(tensor)
        return NOTHING if array is None else array.reshape(-1)

    def copy(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of the array, [1, ...]. The input must not be missing."""
        return self._arrays[tensor].copy()

    def flag(self, tensor: Tensor, default: bool = False) -> bool:
        return bool(self.scalar(tensor, default))

    def integer(self, tensor: Tensor, minimum: int, maximum: int) -> int | None:
        """Return the integer between ``minimum`` and ``maximum``; None if it is missing."""
        value = self.scalar(tensor, None)
        if value is None:
            return None
        if not minimum <= value <= maximum:
            raise BadRequest(
                f"input '{tensor}' must be between {minimum} and {maximum}; got {value}", tensor
            )
        return int(value)

    def number(self, tensor: Tensor, bounds: Bounds) -> float | None:
        """Return the finite number within ``bounds``; None if it is missing."""
        value = self.scalar(tensor, None)
        if value is not None and (fault := bounds.fault(value)):
            raise BadRequest(f"input '{tensor}' {fault}", tensor)
        number: float | None = value
        return number

    def scalar(self, tensor: Tensor, default: Any) -> Any:
        """Return the only value; ``default`` if the input is missing."""
        if tensor not in self:
            return default
        values = self.values(tensor)
        if len(values) != 1:
            raise BadRequest(
                f"input '{tensor}' must have one value per prompt; got {len(values)}", tensor
            )
        return values[0].item()

    def strings(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the strings; empty if the input is missing."""
        try:
            return tuple(value.decode() for value in self.values(tensor))
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"input '{tensor}' must be UTF-8; got byte {error.object[error.start]:#04x} at "
                f"position {error.start}",
                tensor,
            ) from error

    def reject_unless(self, possible: bool, inputs: Iterable[Tensor], reason: str) -> None:
        """Unless ``possible``, reject inputs whose values aren't all zero, false or empty."""
        for tensor in () if possible else inputs:
            if any(self.values(tensor).tolist()):
                raise BadRequest(f"input '{tensor}' {reason}", tensor)


def split_rows(arrays: Mapping[str, NDArray[Any]]) -> list[PromptInputs]:
    """Return the inputs of each prompt. arrays: inputs by name, with one row per prompt."""
    size = len(next(iter(arrays.values()))) if arrays else 0
    for name, array in arrays.items():
        if len(array) != size:
            raise BadRequest(
                f"input '{name}' must have {size} rows, one per prompt; got {len(array)}", name
            )
    return [PromptInputs(arrays, row) for row in range(size)]


def reject_unknown(parameters: str) -> None:
    """Reject unknown keys, so that a typo isn't ignored. `generate` turns them into parameters.

    parameters: the request's parameters, as a JSON object from Triton.
    """
    if len(parameters) > MAX_PARAMETERS_BYTES:
        raise BadRequest(
            f"the request's parameters have {len(parameters)} bytes; the limit is "
            f"{MAX_PARAMETERS_BYTES}; send inputs instead"
        )
    names: list[str] = list(tensors.INPUTS)
    for key in json.loads(parameters or "{}"):
        if key in TRITON_PARAMETERS or key.startswith("triton_"):
            continue
        if key in names:
            raise BadRequest(f"input '{key}' must be a tensor; it was sent as a parameter", key)
        near = difflib.get_close_matches(key[:MAX_QUOTE_CHARS], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"input {quote(key)} isn't known{hint}")


def check_sizes(inputs: Mapping[str, NDArray[Any]], limits: RequestLimits) -> None:
    """Reject inputs that are too large, without reading their contents.

    inputs: arrays by name, with one row per prompt; strings as bytes.
    """
    for tensor, text in ((tensors.TEXT_INPUT, "prompt"), (tensors.PREDICTION, "prediction")):
        longest = max(map(len, inputs.get(tensor, NOTHING).flat), default=0)
        if limits.max_text_bytes and longest > limits.max_text_bytes:
            raise BadRequest(
                f"input '{tensor}' has {longest} bytes; the limit is {limits.max_text_bytes}; "
                f"shorten the {text}",
                tensor,
            )
    lists = {tensor: inputs[tensor] for tensor in WORD_LISTS if tensor in inputs}
    for tensor, words in lists.items():
        if words.size > len(words) * limits.max_words:
            raise BadRequest(
                f"input '{tensor}' has {words.size // len(words)} words per prompt; the limit is "
                f"{limits.max_words}",
                tensor,
            )
    size = sum(len(word) for words in lists.values() for word in words.flat)
    if size > limits.max_words_bytes:
        names = " and ".join(f"'{tensor}'" for tensor in lists)
        raise BadRequest(
            f"input{'s' * (len(lists) > 1)} {names}: {size} bytes in total; the limit is "
            f"{limits.max_words_bytes}",
            next(iter(lists)),
        )


def quote(text: str) -> str:
    """Return client text for an error message, shortened and on one line."""
    cut = "..." if len(text) > MAX_QUOTE_CHARS else ""
    return repr(text[:MAX_QUOTE_CHARS] + cut)


TYPE, TEXT = tensors.GUIDED_DECODING_GUIDE_TYPE, tensors.GUIDED_DECODING_GUIDE
WITHOUT_TEXT = "json"  # the guide type without a text: any JSON


def check_guides(inputs: Mapping[str, NDArray[Any]], max_bytes: int) -> None:
    """Reject guides that are too long, or all guides if ``max_bytes`` is 0."""
    arrays = [inputs[tensor] for tensor in (TYPE, TEXT) if tensor in inputs]
    longest = max((len(text) for texts in arrays for text in texts.flat), default=0)
    if longest and not max_bytes:
        raise GuideRejected(
            f"input '{TYPE}' isn't supported by this deployment: its profile sets "
            "limits.max_guide_bytes to 0",
            TYPE,
        )
    if longest > max_bytes:
        raise GuideRejected(
            f"input '{TEXT}' has {longest} bytes; the limit is {max_bytes}; send a shorter guide",
            TEXT,
        )


def read_guide(inputs: PromptInputs) -> Guide | None:
    """Return a prompt's guide or None; raise BadRequest if its type or text is bad or missing."""
    kind, text = (_single_value(inputs, tensor) for tensor in (TYPE, TEXT))
    if not kind:
        if text:
            raise BadRequest(f"input '{TYPE}' is missing; send one of {', '.join(KINDS)}", TYPE)
        return None
    if kind not in KINDS:
        raise BadRequest(
            f"input '{TYPE}' must be one of {', '.join(KINDS)}; got {quote(kind)}", TYPE
        )
    if not text and kind != WITHOUT_TEXT:
        raise BadRequest(f"input '{TEXT}' is missing; '{TYPE}' {kind} requires it", TEXT)
    return Guide(kind, text)


def _single_value(inputs: PromptInputs, tensor: Tensor) -> str:
    values = inputs.strings(tensor)
    if len(values) > 1:
        raise BadRequest(
            f"input '{tensor}' must have one value per prompt; got {len(values)}", tensor
        )
    return values[0] if values else ""


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


def no_pools(tensor: Tensor) -> BadRequest:
    return BadRequest(
        f"input '{tensor}' isn't supported by this deployment: its profile sets "
        "decoding.prompt_lookup.max_pool_tokens to 0",
        tensor,
    )


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
        ahead = self._draft_ahead(drafter, request)
        pool = self._lookup_pool()
        if drafter.in_engine and draft_len == 0:
            raise BadRequest(
                f"input '{tensors.NUM_DRAFT_TOKENS}' {IN_ENGINE}", tensors.NUM_DRAFT_TOKENS
            )
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
        draft length is AUTO, AUTO also chooses the length of copied drafts, so the engine's maximum
        is returned.
        """
        if copy_len is not None:
            return copy_len
        settings = self._settings
        length = settings.draft_len if draft_len is None else draft_len
        if drafter.looks_up and length == AUTO:
            return settings.target.max_draft_len
        return settings.prompt_lookup_num_tokens if draft_len in (None, AUTO) else draft_len

    def _drafter(self) -> DrafterKind:
        names = self._inputs.strings(tensors.DRAFTER)
        name = names[0] if names and names[0] else self._settings.drafter
        known = self._settings.drafters
        if name not in known:
            raise BadRequest(
                f"input '{tensors.DRAFTER}' must be one of {', '.join(known)} in this deployment; "
                f"got {quote(name)}",
                tensors.DRAFTER,
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

    def _draft_ahead(self, drafter: DrafterKind, request: Request) -> bool | None:
        """Return whether to draft ahead; None: only if it saves time."""
        values = self._inputs.strings(tensors.DRAFT_AHEAD)
        if not values or not values[0]:
            return self._settings.draft_ahead
        if values[0] not in DRAFT_AHEAD:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' must be one of {', '.join(DRAFT_AHEAD)}; "
                f"got {quote(values[0])}",
                tensors.DRAFT_AHEAD,
            )
        ahead = DRAFT_AHEAD[values[0]]
        if ahead and not drafter.drafts_ahead:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' requires '{tensors.DRAFTER}' to be "
                f"{_names_of_drafters(lambda kind: kind.drafts_ahead)}",
                tensors.DRAFT_AHEAD,
            )
        if ahead and not self._settings.draft_branches:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' can't be true: this deployment's draft engine "
                "doesn't draft ahead; send auto or false",
                tensors.DRAFT_AHEAD,
            )
        if ahead and request.guide:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' can't be true in a guided request; send auto or "
                "false",
                tensors.DRAFT_AHEAD,
            )
        by_logits = self._inputs.flag(tensors.USE_DRAFT_LOGITS, self._settings.use_draft_logits)
        if ahead and by_logits and not request.sampling.greedy:
            raise BadRequest(
                f"input '{tensors.DRAFT_AHEAD}' can't be true if the request samples with "
                f"'{tensors.USE_DRAFT_LOGITS}'; send auto or false",
                tensors.DRAFT_AHEAD,
            )
        return ahead

    def _lookup_pool(self) -> str | None:
        """Return the name of the lookup pool, or None."""
        names = self._inputs.values(tensors.LOOKUP_POOL)
        if not len(names):
            return None
        if not self._settings.max_pool_tokens:
            raise no_pools(tensors.LOOKUP_POOL)
        if not 1 <= len(names[0]) <= MAX_POOL_NAME_BYTES:
            raise BadRequest(
                f"input '{tensors.LOOKUP_POOL}' must have between 1 and {MAX_POOL_NAME_BYTES} "
                f"bytes; got {len(names[0])}",
                tensors.LOOKUP_POOL,
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
                "vocabulary of its own, so its logits don't fit the target's",
                tensors.USE_DRAFT_LOGITS,
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
