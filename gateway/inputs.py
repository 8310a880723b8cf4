"""A request's fields as tensors of the entry that holds the loop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.gateway.errors import bad_request
from tandem.gateway.models import ServedModel
from tandem.gateway.schema import GenerationRequest
from tandem.gateway.triton import Inputs, Value

AUTO = -1  # a draft length that follows what drafts cost and earn
NO_END = -1


def inputs_for(
    request: GenerationRequest, model: ServedModel, ids: Sequence[int], room: int, number: int
) -> Inputs:
    """Return what is sent for one answer; raise ApiError where it cannot fit.

    ids: the prompt, [num_input_tokens]. room: tokens of prompt and answer together. number: of the
    answer among all that the request asks for, from 0.
    """
    inputs: dict[Tensor, Value] = {
        tensors.INPUT_IDS: ids,
        tensors.MAX_TOKENS: _max_tokens(request.limit, len(ids), room),
        # A chunk is a round: only then is it known which tokens were accepted.
        tensors.STREAM: request.stream or request.return_token_details,
        **_sampling(request, number),
        **_drafting(request, model),
    }
    optional: dict[Tensor, Value | None] = {
        tensors.STOP_WORDS: request.stop_strings or None,
        tensors.BAD_WORDS: [word for word in request.bad_words if word] or None,
        tensors.MIN_TOKENS: request.min_tokens or None,
        tensors.END_ID: NO_END if request.ignore_eos else None,
    }
    return inputs | {tensor: value for tensor, value in optional.items() if value is not None}


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of one of several answers: the request's own for the first."""
    if number == 0:
        return seed % 2**64
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _max_tokens(limit: int | None, length: int, room: int) -> int:
    left = room - length
    if left < 1 or (limit or 0) > left:
        new = f"and {limit} new ones " if limit else ""
        raise bad_request(
            f"{length} prompt tokens {new}exceed {room - (0 if limit else 1)}, which is what fits",
            param="max_tokens" if left > 0 else None,
            code="context_length_exceeded",
        )
    return left if limit is None else limit


def _sampling(request: GenerationRequest, number: int) -> dict[Tensor, Value]:
    """A temperature of 1 samples only with ``top_p`` beside it: alone, entries take it for greedy.

    With a ``top_p`` of 0 only the likeliest token is left, which is greedy.
    """
    chosen: dict[Tensor, Value | None] = {
        tensors.TEMPERATURE: 0.0,
        tensors.REPETITION_PENALTY: request.repetition_penalty,
        tensors.PRESENCE_PENALTY: request.presence_penalty,
        tensors.FREQUENCY_PENALTY: request.frequency_penalty,
        tensors.SEED: None if request.seed is None else derived_seed(request.seed, number),
    }
    if request.temperature and request.top_p:
        chosen[tensors.TEMPERATURE] = request.temperature
        chosen[tensors.TOP_P] = request.top_p
        chosen[tensors.TOP_K] = max(request.top_k, 0) or None
    return {tensor: value for tensor, value in chosen.items() if value is not None}


def _drafting(request: GenerationRequest, model: ServedModel) -> dict[Tensor, Value]:
    length = AUTO if request.num_draft_tokens == "auto" else request.num_draft_tokens
    chosen: dict[Tensor, Value | None] = {
        tensors.DRAFTER: request.drafter or model.drafter,
        tensors.NUM_DRAFT_TOKENS: length,
        tensors.DRAFT_AHEAD: None
        if request.draft_ahead is None
        else str(request.draft_ahead).lower(),
        tensors.PROMPT_LOOKUP_NUM_TOKENS: request.prompt_lookup_num_tokens,
        tensors.MAX_MATCHING_NGRAM_SIZE: request.max_matching_ngram_size,
        tensors.USE_DRAFT_LOGITS: request.use_draft_logits,
        tensors.DRAFT_ACCEPTANCE_THRESHOLD: request.draft_acceptance_threshold,
    }
    return {tensor: value for tensor, value in chosen.items() if value is not None}
