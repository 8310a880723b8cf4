"""Convert an `EngineResponse` to the contract's tensors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.contract.tensor import Tensor
from tandem.engines.engine import NO_IDS, CallUsage, EngineRequest, EngineResponse, Ids

Array: TypeAlias = NDArray[Any]

_TYPES = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


@dataclass
class Sent:
    """Totals over a call's answers so far."""

    answers: int = 0
    tokens: int = 0
    cum_log_prob: float = 0.0


class _Part(NamedTuple):
    """One answer of a call. `sent` already includes it."""

    request: EngineRequest
    answer: EngineResponse
    sent: Sent


def encode(
    request: EngineRequest, answer: EngineResponse, wanted: Collection[str], sent: Sent
) -> dict[str, Array]:
    """Return the wanted outputs that the answer has, with batch dimension. Add it to `sent`."""
    sent.answers += 1
    sent.tokens += len(answer.tokens)
    if answer.log_probs is not None:
        sent.cum_log_prob += float(answer.log_probs.sum(dtype=np.float64))
    part = _Part(request, answer, sent)
    arrays: dict[str, Array] = {}
    for tensor, value_of in _VALUES.items():
        value = value_of(part) if tensor in wanted else None
        if value is not None:
            array = np.asarray(value, _TYPES[tensor.dtype])
            # One sequence and one beam: the axes before the value's own axes have size 1.
            missing = 1 + len(tensor.dims) - array.ndim
            arrays[tensor] = array.reshape((1,) * missing + array.shape)
    return arrays


def _context_ids(part: _Part) -> Ids:
    is_shown = part.sent.answers == 1 and not part.request.exclude_input
    return part.request.input_ids if is_shown else NO_IDS


def _usage(of: Callable[[CallUsage], float]) -> Callable[[_Part], Any]:
    return lambda part: of(part.answer.usage) if part.request.return_perf_metrics else None


# The value of each output without the batch and beam axes, or None if the answer doesn't have it.
_VALUES: dict[Tensor, Callable[[_Part], Any]] = {
    tensors.OUTPUT_IDS: lambda part: np.concatenate(
        (_context_ids(part), np.array(part.answer.tokens, np.int32))
    ),
    tensors.SEQUENCE_LENGTH: lambda part: len(_context_ids(part)) + len(part.answer.tokens),
    tensors.CUM_LOG_PROBS: lambda part: (
        None if part.answer.log_probs is None else part.sent.cum_log_prob
    ),
    tensors.OUTPUT_LOG_PROBS: lambda part: part.answer.log_probs,
    tensors.OUTPUT_TOP_IDS: lambda part: (
        part.answer.top_log_probs and part.answer.top_log_probs.ids
    ),
    tensors.OUTPUT_TOP_LOG_PROBS: lambda part: (
        part.answer.top_log_probs and part.answer.top_log_probs.log_probs
    ),
    tensors.PROMPT_LOG_PROBS: lambda part: part.answer.prompt_log_probs,
    tensors.PROMPT_TOP_IDS: lambda part: (
        part.answer.prompt_top_log_probs and part.answer.prompt_top_log_probs.ids
    ),
    tensors.PROMPT_TOP_LOG_PROBS: lambda part: (
        part.answer.prompt_top_log_probs and part.answer.prompt_top_log_probs.log_probs
    ),
    tensors.CONTEXT_LOGITS: lambda part: part.answer.context_logits,
    tensors.GENERATION_LOGITS: lambda part: part.answer.generation_logits,
    tensors.BRANCH_OUTCOMES: lambda part: part.answer.branches and part.answer.branches.outcomes,
    tensors.BRANCH_IDS: lambda part: part.answer.branches and part.answer.branches.ids,
    tensors.BRANCH_LENGTHS: lambda part: part.answer.branches and part.answer.branches.lengths,
    tensors.BATCH_INDEX: lambda _: 0,
    tensors.SEQUENCE_INDEX: lambda _: 0,
    tensors.KV_CACHE_REUSED_BLOCKS: _usage(lambda usage: usage.reused_blocks),
    tensors.KV_CACHE_ALLOC_NEW_BLOCKS: _usage(lambda usage: usage.new_blocks),
    tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS: _usage(
        lambda usage: usage.reused_blocks + usage.new_blocks
    ),
    tensors.ARRIVAL_TIME_NS: lambda part: (
        part.request.arrival_time_ns if part.request.return_perf_metrics else None
    ),
    tensors.FIRST_SCHEDULED_TIME_NS: _usage(lambda usage: usage.first_scheduled_time_ns),
    tensors.FIRST_TOKEN_TIME_NS: _usage(lambda usage: usage.first_token_time_ns),
    tensors.LAST_TOKEN_TIME_NS: _usage(lambda usage: usage.last_token_time_ns),
    tensors.ACCEPTANCE_RATE: _usage(
        lambda usage: usage.accepted_tokens / max(1, usage.draft_tokens)
    ),
    tensors.TOTAL_ACCEPTED_DRAFT_TOKENS: _usage(lambda usage: usage.accepted_tokens),
    tensors.TOTAL_DRAFT_TOKENS: _usage(lambda usage: usage.draft_tokens),
    tensors.NUM_INPUT_TOKENS: lambda part: (
        len(part.request.input_ids) if part.request.return_num_input_tokens else None
    ),
    tensors.NUM_OUTPUT_TOKENS: lambda part: (
        part.sent.tokens if part.request.return_num_output_tokens else None
    ),
}
