"""Convert an `EngineResponse` to the contract's tensors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.contract.tensor import Tensor
from tandem.engines.request import NO_IDS, CallUsage, EngineRequest, EngineResponse, Ids

Array: TypeAlias = NDArray[Any]

_TYPES = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


def encode(
    request: EngineRequest, answer: EngineResponse, wanted: Collection[str]
) -> Iterator[tuple[str, Array]]:
    """Yield the name and array, with batch dimension, of each wanted output that the answer has."""
    wanted = frozenset(wanted)
    for tensor, value_of in _VALUES.items():
        value = value_of(request, answer) if tensor in wanted else None
        if value is not None:
            array = np.asarray(value, _TYPES[tensor.dtype])
            # One sequence and one beam: the axes before the value's own axes have size 1.
            missing = 1 + len(tensor.dims) - array.ndim
            yield tensor, array.reshape((1,) * missing + array.shape)


def _shown_context(request: EngineRequest, answer: EngineResponse) -> Ids:
    return request.input_ids if answer.first and not request.exclude_input else NO_IDS


def _usage(of: Callable[[CallUsage], float]) -> Callable[[EngineRequest, EngineResponse], Any]:
    return lambda request, answer: of(answer.usage) if request.return_perf_metrics else None


# The value of each output without the batch and beam axes, or None if the answer doesn't have it.
_VALUES: dict[Tensor, Callable[[EngineRequest, EngineResponse], Any]] = {
    tensors.OUTPUT_IDS: lambda request, answer: np.concatenate(
        (_shown_context(request, answer), np.array(answer.tokens, np.int32))
    ),
    tensors.SEQUENCE_LENGTH: lambda request, answer: (
        len(_shown_context(request, answer)) + len(answer.tokens)
    ),
    tensors.CUM_LOG_PROBS: lambda _, answer: (
        None if answer.log_probs is None else answer.cum_log_prob
    ),
    tensors.OUTPUT_LOG_PROBS: lambda _, answer: answer.log_probs,
    tensors.OUTPUT_TOP_IDS: lambda _, answer: answer.top_log_probs and answer.top_log_probs.ids,
    tensors.OUTPUT_TOP_LOG_PROBS: lambda _, answer: (
        answer.top_log_probs and answer.top_log_probs.log_probs
    ),
    tensors.PROMPT_LOG_PROBS: lambda _, answer: answer.prompt_log_probs,
    tensors.PROMPT_TOP_IDS: lambda _, answer: (
        answer.prompt_top_log_probs and answer.prompt_top_log_probs.ids
    ),
    tensors.PROMPT_TOP_LOG_PROBS: lambda _, answer: (
        answer.prompt_top_log_probs and answer.prompt_top_log_probs.log_probs
    ),
    tensors.CONTEXT_LOGITS: lambda _, answer: answer.context_logits,
    tensors.GENERATION_LOGITS: lambda _, answer: answer.generation_logits,
    tensors.BRANCH_OUTCOMES: lambda _, answer: answer.branches and answer.branches.outcomes,
    tensors.BRANCH_IDS: lambda _, answer: answer.branches and answer.branches.ids,
    tensors.BRANCH_LENGTHS: lambda _, answer: answer.branches and answer.branches.lengths,
    tensors.BRANCH_LOG_PROBS: lambda _, answer: answer.branches and answer.branches.log_probs,
    tensors.BATCH_INDEX: lambda _request, _answer: 0,
    tensors.SEQUENCE_INDEX: lambda _request, _answer: 0,
    tensors.KV_CACHE_REUSED_BLOCKS: _usage(lambda usage: usage.reused_blocks),
    tensors.KV_CACHE_ALLOC_NEW_BLOCKS: _usage(lambda usage: usage.new_blocks),
    tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS: _usage(
        lambda usage: usage.reused_blocks + usage.new_blocks
    ),
    tensors.ARRIVAL_TIME_NS: lambda request, _: (
        request.arrival_time_ns if request.return_perf_metrics else None
    ),
    tensors.FIRST_SCHEDULED_TIME_NS: _usage(lambda usage: usage.first_scheduled_time_ns),
    tensors.FIRST_TOKEN_TIME_NS: _usage(lambda usage: usage.first_token_time_ns),
    tensors.LAST_TOKEN_TIME_NS: _usage(lambda usage: usage.last_token_time_ns),
    tensors.ACCEPTANCE_RATE: _usage(
        lambda usage: usage.accepted_tokens / max(1, usage.draft_tokens)
    ),
    tensors.TOTAL_ACCEPTED_DRAFT_TOKENS: _usage(lambda usage: usage.accepted_tokens),
    tensors.TOTAL_DRAFT_TOKENS: _usage(lambda usage: usage.draft_tokens),
    tensors.NUM_INPUT_TOKENS: lambda request, _: (
        len(request.input_ids) if request.return_num_input_tokens else None
    ),
    tensors.NUM_OUTPUT_TOKENS: lambda request, answer: (
        answer.num_output_tokens if request.return_num_output_tokens else None
    ),
}
