"""Builds responses to clients: an answer for all prompts, or a chunk for one prompt."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.bls.loop import Decoding
from tandem.bls.ports import FinishReason, PromptLogProbs, TokenDetails, TopLogProbs
from tandem.bls.request import Options, TokenIds
from tandem.bls.statistics import Timeline, Totals
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor

LOWEST = np.finfo(np.float32).min
# Outputs only for clients that request them by name, because most clients need text, not ids.
ON_REQUEST = frozenset(
    {
        tensors.OUTPUT_IDS,
        tensors.SEQUENCE_LENGTH,
        tensors.OUTPUT_ROUNDS,
        tensors.OUTPUT_KINDS,
        tensors.OUTPUT_TEXT_LENGTHS,
        tensors.OUTPUT_REJECTED_IDS,
        tensors.SPEC_DECODE_STATISTICS,
    }
)
# Running totals. Clients that request them by name get them in every chunk, others in the last one.
TOTALS = frozenset(
    {tensors.NUM_ROUNDS, tensors.TOTAL_DRAFT_TOKENS, tensors.TOTAL_ACCEPTED_DRAFT_TOKENS}
)


@dataclass(frozen=True)
class SequenceOutput:
    """One prompt's part of a response: its whole answer, or a chunk.

    index: index of the prompt in the request. cum_log_prob: cumulative log-probability of the
    answer so far. prompt_log_probs: None except in the first response.
    """

    index: int
    text: str
    tokens: TokenIds
    finish_reason: FinishReason | None
    totals: Totals
    details: TokenDetails
    decoding: Decoding
    times: Timeline
    cum_log_prob: float
    prompt_log_probs: PromptLogProbs | None


class ResponseBuilder:
    """Builds responses with the outputs that the client requested."""

    def __init__(self, requested: Sequence[str], options: Options) -> None:
        names = set(requested)
        names_no_outputs = _names_no_outputs(names)
        self._wanted = names - ON_REQUEST if names_no_outputs else names
        self._running = frozenset() if names_no_outputs else names & TOTALS
        self._options = options

    def response(self, parts: Sequence[SequenceOutput]) -> Any:
        """Return one response. parts: one part for a chunk, one part per prompt for an answer."""
        outputs: dict[Tensor, NDArray[Any]] = {
            tensors.TEXT_OUTPUT: np.array([p.text.encode() for p in parts], dtype=object),
            tensors.BATCH_INDEX: _column([p.index for p in parts]),
            tensors.SEQUENCE_INDEX: _column([0] * len(parts)),
            tensors.OUTPUT_IDS: _pad([p.tokens for p in parts], np.int32),
            tensors.SEQUENCE_LENGTH: _column([len(p.tokens) for p in parts]),
        }
        outputs |= _details(parts) | _log_probs(parts) | _prompt_log_probs(parts)
        if self._options.return_num_input_tokens:
            lengths = [len(p.decoding.request.prompt_ids) for p in parts]
            outputs[tensors.NUM_INPUT_TOKENS] = _column(lengths)
        if self._options.return_num_output_tokens:
            # Front ends add up the counts of all chunks.
            outputs[tensors.NUM_OUTPUT_TOKENS] = _column([len(p.tokens) for p in parts])
        outputs |= {n: total for n, total in _statistics(parts).items() if n in self._running}
        reasons = [p.finish_reason for p in parts if p.finish_reason is not None]
        if len(reasons) == len(parts):
            outputs[tensors.FINISH_REASON] = np.array([r.encode() for r in reasons], dtype=object)
            outputs |= _statistics(parts) | _logits(parts)
            if tensors.SPEC_DECODE_STATISTICS in self._wanted:
                outputs[tensors.SPEC_DECODE_STATISTICS] = _statistics_in_json(parts)
            if self._options.return_perf_metrics:
                outputs |= _performance(parts)
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor(name, value)
                for name, value in outputs.items()
                if name in self._wanted
            ]
        )


def text_response(text: str) -> Any:
    """Return a response that has only a text."""
    texts = np.array([text.encode()], dtype=object)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(tensors.TEXT_OUTPUT, texts)])


def returns_text_lengths(requested: Collection[str]) -> bool:
    """Return whether the client requested OUTPUT_TEXT_LENGTHS by name."""
    return tensors.OUTPUT_TEXT_LENGTHS in requested and not _names_no_outputs(requested)


def _names_no_outputs(requested: Collection[str]) -> bool:
    """Return whether the client named no outputs. Triton passes all names in that case."""
    return set(requested) >= set(tensors.OUTPUTS)


def _details(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    outputs: dict[Tensor, NDArray[Any]] = {
        tensors.OUTPUT_ROUNDS: _pad([p.details.rounds for p in parts], np.int32),
        tensors.OUTPUT_KINDS: _pad([p.details.kinds for p in parts], np.uint8),
        tensors.OUTPUT_REJECTED_IDS: _pad([p.details.rejected_ids for p in parts], np.int32),
    }
    lengths = [p.details.text_lengths for p in parts if p.details.text_lengths is not None]
    if len(lengths) == len(parts):
        outputs[tensors.OUTPUT_TEXT_LENGTHS] = _pad(lengths, np.int32)
    return outputs


def _statistics(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    totals = [p.totals for p in parts]
    return {
        tensors.NUM_ROUNDS: _column([t.num_rounds for t in totals]),
        tensors.ACCEPTANCE_RATE: _column([t.draft_acceptance_rate for t in totals], np.float32),
        tensors.TOTAL_DRAFT_TOKENS: _column([t.num_draft_tokens for t in totals]),
        tensors.TOTAL_ACCEPTED_DRAFT_TOKENS: _column([t.num_accepted_draft_tokens for t in totals]),
    }


def _statistics_in_json(parts: Sequence[SequenceOutput]) -> NDArray[Any]:
    summaries = [
        {
            **p.decoding.statistics.as_dict(),
            "auto": p.decoding.measured_by_auto(),
            "decoding_seconds": p.times.decoding_seconds,
            tensors.ARRIVAL_TIME_NS: p.times.arrival,
            tensors.FIRST_SCHEDULED_TIME_NS: p.times.first_scheduled,
            tensors.FIRST_TOKEN_TIME_NS: p.times.first_token,
            tensors.LAST_TOKEN_TIME_NS: p.times.last_token,
        }
        for p in parts
    ]
    return np.array([json.dumps(f).encode() for f in summaries], dtype=object)


def _log_probs(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    """Return log-probabilities of the tokens [b, 1, n] and of their alternatives [b, 1, n, k]."""
    values = [p.details.log_probs for p in parts if p.details.log_probs is not None]
    if len(values) < len(parts):
        return {}
    outputs = {
        tensors.OUTPUT_LOG_PROBS: _pad(values, np.float32),
        tensors.CUM_LOG_PROBS: _column([p.cum_log_prob for p in parts], np.float32),
    }
    tops = [
        TopLogProbs(p.details.top_ids, p.details.top_log_probs)
        for p in parts
        if p.details.top_ids is not None and p.details.top_log_probs is not None
    ]
    if len(tops) == len(parts):
        outputs[tensors.OUTPUT_TOP_IDS] = _pad([top.ids for top in tops], np.int32)
        outputs[tensors.OUTPUT_TOP_LOG_PROBS] = _pad([top.values for top in tops], np.float32)
    return outputs


def _prompt_log_probs(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    prompts = [p.prompt_log_probs for p in parts if p.prompt_log_probs is not None]
    if len(prompts) < len(parts):
        return {}
    outputs = {tensors.PROMPT_LOG_PROBS: _pad([prompt.values for prompt in prompts], np.float32)}
    tops = [prompt.top for prompt in prompts if prompt.top is not None]
    if len(tops) == len(parts):
        outputs[tensors.PROMPT_TOP_IDS] = _pad([top.ids for top in tops], np.int32)
        outputs[tensors.PROMPT_TOP_LOG_PROBS] = _pad([top.values for top in tops], np.float32)
    return outputs


def _logits(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    """Return the logits of the prompts and the answers. Shorter rows are padded with zeros."""
    outputs = {}
    context = [p.decoding.context_logits for p in parts]
    if all(logits is not None for logits in context):
        outputs[tensors.CONTEXT_LOGITS] = _pad(context, np.float32)[:, 0]
    generation = [p.decoding.generation_logits for p in parts]
    widths = {logits[0].shape[-1] for logits in generation if logits}
    if widths and all(p.decoding.generation_logits or not len(p.tokens) for p in parts):
        nothing = np.empty((0, *widths), np.float32)  # an answer may have no tokens
        rows = [np.concatenate((nothing, *logits)) for logits in generation]
        logits = _pad(rows, np.float32)
        # Banned tokens have -inf, which JSON can't represent.
        outputs[tensors.GENERATION_LOGITS] = np.maximum(logits, LOWEST, out=logits)
    return outputs


def _performance(parts: Sequence[SequenceOutput]) -> dict[Tensor, NDArray[Any]]:
    reused = [b.reused if (b := p.decoding.prompt_kv_blocks) else 0 for p in parts]
    held = [b.total if (b := p.decoding.kv_blocks) else 0 for p in parts]
    return {
        tensors.KV_CACHE_REUSED_BLOCKS: _column(reused),
        tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS: _column(held),
        tensors.KV_CACHE_ALLOC_NEW_BLOCKS: _column(np.subtract(held, reused)),
        tensors.ARRIVAL_TIME_NS: _column([p.times.arrival for p in parts], np.int64),
        tensors.FIRST_SCHEDULED_TIME_NS: _column(
            [p.times.first_scheduled for p in parts], np.int64
        ),
        tensors.FIRST_TOKEN_TIME_NS: _column([p.times.first_token for p in parts], np.int64),
        tensors.LAST_TOKEN_TIME_NS: _column([p.times.last_token for p in parts], np.int64),
    }


def _column(values: Sequence[Any] | NDArray[Any], dtype: Any = np.int32) -> NDArray[Any]:
    """Return the values as a column, [b, 1]."""
    return np.array(values, dtype).reshape(-1, 1)


def _pad(rows: Sequence[Any], dtype: Any) -> NDArray[Any]:
    """Return rows as [b, 1, longest, ...] (one beam each). Shorter rows are padded with zeros."""
    longest = max(len(row) for row in rows)
    array = np.zeros((len(rows), 1, longest, *rows[0].shape[1:]), dtype)
    for at, row in enumerate(rows):
        array[at, 0, : len(row)] = row
    return array
