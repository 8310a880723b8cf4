"""From an `EngineResponse` to the contract's tensors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.engines.request import CallUsage, EngineRequest, EngineResponse

Array: TypeAlias = NDArray[Any]
Encoder: TypeAlias = Callable[[EngineRequest, EngineResponse], "Array | None"]


def encode(
    request: EngineRequest, answer: EngineResponse, wanted: Collection[str]
) -> Iterator[tuple[str, Array]]:
    """Yield name and array, batch dimension included, of each wanted output that the call has."""
    for name in wanted:
        encoder = _ENCODERS.get(name)
        array = encoder(request, answer) if encoder else None
        if array is not None:
            yield name, array


def nothing(wanted: Collection[str]) -> Iterator[tuple[str, Array]]:
    """Yield an answer without tokens: what a call with `stop` gets."""
    if tensors.OUTPUT_IDS in wanted:
        yield tensors.OUTPUT_IDS, np.empty((1, 1, 0), np.int32)
    if tensors.SEQUENCE_LENGTH in wanted:
        yield tensors.SEQUENCE_LENGTH, np.zeros((1, 1), np.int32)


def _output_ids(request: EngineRequest, answer: EngineResponse) -> Array:
    """[batch 1, beam 1, tokens]; the context first if asked for."""
    if _shows_context(request, answer):
        ids = np.array(answer.tokens, np.int32)
        return np.concatenate((request.input_ids, ids))[None, None]
    return np.array([[answer.tokens]], np.int32)


def _sequence_length(request: EngineRequest, answer: EngineResponse) -> Array:
    context = len(request.input_ids) if _shows_context(request, answer) else 0
    return _int32(context + len(answer.tokens))


def _shows_context(request: EngineRequest, answer: EngineResponse) -> bool:
    return answer.first and not request.exclude_input


def _cum_log_probs(_request: EngineRequest, answer: EngineResponse) -> Array | None:
    return None if answer.log_probs is None else np.array([[answer.cum_log_prob]], np.float32)


def _output_log_probs(_request: EngineRequest, answer: EngineResponse) -> Array | None:
    return None if answer.log_probs is None else answer.log_probs[None, None]


def _context_logits(_request: EngineRequest, answer: EngineResponse) -> Array | None:
    return None if answer.context_logits is None else answer.context_logits[None]


def _generation_logits(_request: EngineRequest, answer: EngineResponse) -> Array | None:
    return None if answer.generation_logits is None else answer.generation_logits[None, None]


def _branches(field: str) -> Encoder:
    """[batch 1, ...] of a field of the branches."""

    def encoder(_request: EngineRequest, answer: EngineResponse) -> Array | None:
        array = None if answer.branches is None else getattr(answer.branches, field)
        return None if array is None else array[None]

    return encoder


def _acceptance_rate(_request: EngineRequest, answer: EngineResponse) -> Array:
    usage = answer.usage
    return np.array([[usage.accepted_tokens / max(1, usage.draft_tokens)]], np.float32)


def _int32(value: int) -> Array:
    return np.array([[value]], np.int32)


def _perf(value: Callable[[EngineRequest, EngineResponse], Array]) -> Encoder:
    return lambda request, answer: value(request, answer) if request.return_perf_metrics else None


def _usage(count: Callable[[CallUsage], int]) -> Encoder:
    return _perf(lambda _request, answer: _int32(count(answer.usage)))


def _time(of: Callable[[CallUsage], int]) -> Encoder:
    return _perf(lambda _request, answer: np.array([[of(answer.usage)]], np.int64))


_ZERO_NAMES: Sequence[str] = (tensors.BATCH_INDEX, tensors.SEQUENCE_INDEX)
_ENCODERS: dict[str, Encoder] = {
    tensors.OUTPUT_IDS: _output_ids,
    tensors.SEQUENCE_LENGTH: _sequence_length,
    tensors.CUM_LOG_PROBS: _cum_log_probs,
    tensors.OUTPUT_LOG_PROBS: _output_log_probs,
    tensors.CONTEXT_LOGITS: _context_logits,
    tensors.GENERATION_LOGITS: _generation_logits,
    tensors.BRANCH_OUTCOMES: _branches("outcomes"),
    tensors.BRANCH_IDS: _branches("ids"),
    tensors.BRANCH_LENGTHS: _branches("lengths"),
    tensors.BRANCH_LOG_PROBS: _branches("log_probs"),
    **{name: lambda _request, _answer: _int32(0) for name in _ZERO_NAMES},
    tensors.KV_CACHE_REUSED_BLOCKS: _usage(lambda usage: usage.reused_blocks),
    tensors.KV_CACHE_ALLOC_NEW_BLOCKS: _usage(lambda usage: usage.new_blocks),
    tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS: _usage(
        lambda usage: usage.reused_blocks + usage.new_blocks
    ),
    tensors.ARRIVAL_TIME_NS: _perf(
        lambda request, _answer: np.array([[request.arrival_time_ns]], np.int64)
    ),
    tensors.FIRST_SCHEDULED_TIME_NS: _time(lambda usage: usage.first_scheduled_time_ns),
    tensors.FIRST_TOKEN_TIME_NS: _time(lambda usage: usage.first_token_time_ns),
    tensors.LAST_TOKEN_TIME_NS: _time(lambda usage: usage.last_token_time_ns),
    tensors.ACCEPTANCE_RATE: _perf(_acceptance_rate),
    tensors.TOTAL_ACCEPTED_DRAFT_TOKENS: _usage(lambda usage: usage.accepted_tokens),
    tensors.TOTAL_DRAFT_TOKENS: _usage(lambda usage: usage.draft_tokens),
    tensors.NUM_INPUT_TOKENS: lambda request, _answer: (
        _int32(len(request.input_ids)) if request.return_num_input_tokens else None
    ),
    tensors.NUM_OUTPUT_TOKENS: lambda request, answer: (
        _int32(answer.num_output_tokens) if request.return_num_output_tokens else None
    ),
}
