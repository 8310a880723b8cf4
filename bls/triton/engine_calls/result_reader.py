"""Reads the results of engine calls from Triton's responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import (
    BranchDraft,
    DraftLogits,
    EngineCall,
    EngineResult,
    KvBlocks,
    PromptLogProbs,
)
from tandem.bls.request import TokenIds
from tandem.bls.settings import EngineSettings
from tandem.bls.token_details import TopLogProbs
from tandem.contract import engine as tensors

# TensorRT-LLM rejects a call that doesn't request both outputs.
REQUIRED = [tensors.OUTPUT_IDS, tensors.SEQUENCE_LENGTH]
BRANCHES = [tensors.BRANCH_OUTCOMES, tensors.BRANCH_IDS, tensors.BRANCH_LENGTHS]


def read_result(
    response: Any, call: EngineCall, seconds: float, engine: EngineSettings
) -> EngineResult:
    """Return the result in the response to ``call``. seconds: duration of the call."""
    outputs = {tensor.name(): tensor for tensor in response.output_tensors()}
    for tensor in REQUIRED if call.branching is None else REQUIRED + BRANCHES:
        if tensor not in outputs:
            raise EngineCallError(engine.model, f"'{tensor}' is missing from its response")
    length = outputs[tensors.SEQUENCE_LENGTH].as_numpy().item()
    tokens: TokenIds = outputs[tensors.OUTPUT_IDS].as_numpy().reshape(-1)[:length]
    if not engine.excludes_input:
        tokens = tokens[len(call.context) :]
    if (tokens < 0).any():
        raise EngineCallError(engine.model, "its response has negative token ids")
    log_probs = outputs.get(tensors.OUTPUT_LOG_PROBS)
    is_draft = call.engine == "draft"
    return EngineResult(
        tokens=tokens,
        seconds=seconds,
        engine_seconds=_engine_seconds(outputs),
        num_draft_tokens=_count(outputs, tensors.TOTAL_DRAFT_TOKENS),
        num_accepted_tokens=_count(outputs, tensors.TOTAL_ACCEPTED_DRAFT_TOKENS),
        log_probs=None if log_probs is None else log_probs.as_numpy().reshape(-1),
        top=_top(outputs, tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS),
        prompt_log_probs=_prompt_log_probs(outputs),
        logits=None if is_draft else _rows(outputs.get(tensors.GENERATION_LOGITS)),
        draft_logits=_draft_logits(outputs) if is_draft else None,
        context_logits=_rows(outputs.get(tensors.CONTEXT_LOGITS)),
        kv_blocks=_kv_blocks(outputs),
        branches=() if call.branching is None else _branches(outputs),
    )


def _draft_logits(outputs: dict[str, Any]) -> DraftLogits:
    """Return the draft engine's tensor, or a copy of a handle, which may outlive the response."""
    handle = outputs.get(tensors.SHARED_LOGITS_HANDLE)
    return outputs.get(tensors.GENERATION_LOGITS) if handle is None else handle.as_numpy().copy()


def _branches(outputs: dict[str, Any]) -> tuple[BranchDraft, ...]:
    outcomes, ids, lengths = (outputs[tensor].as_numpy() for tensor in BRANCHES)
    lengths = lengths.reshape(-1)
    ids = ids.reshape(len(lengths), -1) if len(lengths) else ids
    first_rows = (np.cumsum(lengths) - lengths).tolist()
    return tuple(
        BranchDraft(num_accepted, token, ids[i, : lengths[i]], first_rows[i])
        for i, (num_accepted, token) in enumerate(outcomes.reshape(-1, 2).tolist())
    )


def _rows(logits: Any) -> Any:
    """Return a tensor of logits as an array [n, vocab_size]; None stays None."""
    if logits is None:
        return None
    array = logits.as_numpy()
    return array.reshape(-1, array.shape[-1])


def _top(outputs: dict[str, Any], ids: str, log_probs: str) -> TopLogProbs | None:
    """Return the alternatives from two outputs [1, 1, n, k], or None if an output is missing."""
    if ids not in outputs or log_probs not in outputs:
        return None
    return TopLogProbs(*(outputs[name].as_numpy()[0, 0] for name in (ids, log_probs)))


def _prompt_log_probs(outputs: dict[str, Any]) -> PromptLogProbs | None:
    """Return copies of the prompt's log-probabilities, because they outlive the response."""
    if tensors.PROMPT_LOG_PROBS not in outputs:
        return None
    top = _top(outputs, tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS)
    return PromptLogProbs(
        outputs[tensors.PROMPT_LOG_PROBS].as_numpy().reshape(-1).copy(),
        None if top is None else TopLogProbs(top.ids.copy(), top.values.copy()),
    )


def _kv_blocks(outputs: dict[str, Any]) -> KvBlocks | None:
    if tensors.KV_CACHE_REUSED_BLOCKS not in outputs:
        return None
    return KvBlocks(
        reused=_count(outputs, tensors.KV_CACHE_REUSED_BLOCKS),
        total=_count(outputs, tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS),
    )


def _count(outputs: dict[str, Any], name: str) -> int:
    return outputs[name].as_numpy().item() if name in outputs else 0


def _engine_seconds(outputs: dict[str, Any]) -> float:
    arrival, last = outputs.get(tensors.ARRIVAL_TIME_NS), outputs.get(tensors.LAST_TOKEN_TIME_NS)
    if arrival is None or last is None:
        return 0.0
    seconds: float = (last.as_numpy().item() - arrival.as_numpy().item()) / 1e9
    return max(0.0, seconds)
