"""Reject calls that none of our engines can serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from tandem.engines.errors import RequestError, UnsupportedError
from tandem.engines.request import MAX_BRANCHES, EngineRequest, Floats, Ids, MaskWords


class Limits(Protocol):
    """Limits of an engine. Lengths are in tokens."""

    @property
    def max_seq_len(self) -> int:
        """Maximum total number of tokens in the context and the answer."""

    @property
    def max_draft_len(self) -> int:
        """Maximum number of draft tokens that the engine verifies per call."""


def check(
    request: EngineRequest,
    limits: Limits,
    vocab_size: int,
    draft_vocab_size: int | None = None,
    num_adapters: int = 0,
) -> None:
    """Raise RequestError if the call cannot be served. The error names the input.

    draft_vocab_size: a second accepted width of draft logits, for a draft model with the same
    vocabulary but different padding. num_adapters: number of LoRA adapters that the engine has.
    """
    if request.lora_task_id and not num_adapters:
        raise UnsupportedError("lora_task_id isn't supported by this engine", "lora_task_id")
    if request.lora_task_id > num_adapters:
        raise RequestError(
            f"lora_task_id must be between 0 and {num_adapters}; got {request.lora_task_id}",
            "lora_task_id",
        )
    if request.branches:
        _check_branches(request, limits)
    else:
        if len(request.branch_output_len):
            raise RequestError(
                "branch_counts is missing; branch_output_len requires it", "branch_counts"
            )
        _check_lengths(request, limits)
    _check_ids("input_ids", request.input_ids, vocab_size)
    _check_ids("draft_input_ids", request.draft_ids, vocab_size)
    _check_ids("bad_words_list", request.sampling.bad_words.ids, vocab_size)
    if request.end_id is not None and request.end_id >= vocab_size:
        raise RequestError(
            f"end_id must be between 0 and {vocab_size - 1}; got {request.end_id}", "end_id"
        )
    _check_bias(request.sampling.embedding_bias, vocab_size)
    if request.token_masks is not None:
        _check_token_masks(request, request.token_masks, vocab_size)
    _check_draft_logits(request, (vocab_size, *filter(None, [draft_vocab_size])))


def check_kv_blocks(request: EngineRequest, kv_cache_tokens: int, block_tokens: int) -> None:
    """Raise RequestError if the call doesn't fit into an empty KV cache."""
    needed, total = -(-request.max_length // block_tokens), kv_cache_tokens // block_tokens
    if needed > total:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) and request_output_len "
            f"({request.max_new_tokens}) need {needed} KV blocks; "
            f"the limit is {total} (kv_cache_tokens)",
            "input_ids",
        )


def _check_lengths(request: EngineRequest, limits: Limits) -> None:
    drafts = len(request.draft_ids)
    if drafts > limits.max_draft_len:
        raise RequestError(
            f"draft_input_ids has {drafts} tokens; the limit is {limits.max_draft_len}",
            "draft_input_ids",
        )
    total = len(request.input_ids) + max(request.max_new_tokens, drafts + 1)
    if total > limits.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with request_output_len "
            f"({request.max_new_tokens}) and draft_input_ids ({drafts}) need {total} tokens; "
            f"the limit is {limits.max_seq_len} (max_seq_len)",
            "input_ids",
        )


def _check_branches(request: EngineRequest, limits: Limits) -> None:
    counts, lengths = request.branch_counts, request.branch_output_len
    assert counts is not None
    rejected = {
        "draft_logits": request.draft_logits is not None,
        "draft_acceptance_threshold": request.draft_acceptance_threshold is not None,
        "token_masks": request.token_masks is not None,
        "return_context_logits": request.return_context_logits,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "num_top_log_probs": request.num_top_log_probs > 0,
        "streaming": request.streaming,
    }
    reject(rejected, "with branch_counts; omit it")
    wanted = len(request.draft_ids) + 1
    for name, array in (("branch_counts", counts), ("branch_output_len", lengths)):
        if len(array) != wanted:
            raise RequestError(
                f"{name} must have {wanted} values for {wanted - 1} draft tokens; got {len(array)}",
                name,
            )
        if array.min() < 0:
            raise RequestError(f"{name} must have values of at least 0; got {array.min()}", name)
    total = int(counts.sum(dtype=np.int64))
    if total > MAX_BRANCHES:
        raise RequestError(
            f"branch_counts has {total} branches in total; the limit is {MAX_BRANCHES}",
            "branch_counts",
        )
    reach = (np.arange(1, wanted + 1) + lengths)[(counts > 0) & (lengths > 0)].max(initial=wanted)
    if len(request.input_ids) + reach > limits.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with draft_input_ids ({wanted - 1}) and "
            f"branch_output_len need {len(request.input_ids) + reach} tokens; the limit is "
            f"{limits.max_seq_len} (max_seq_len)",
            "input_ids",
        )


def reject(inputs: Mapping[str, bool], why: str) -> None:
    """Raise UnsupportedError ("NAME isn't supported WHY") for the first input that is set.

    A condition may follow a name, as in "token_masks for several tokens".
    """
    for name, is_set in inputs.items():
        if is_set:
            raise UnsupportedError(f"{name} isn't supported {why}", name.partition(" ")[0])


def _check_ids(name: str, ids: Ids, vocab_size: int) -> None:
    if len(ids) and ids.view(np.uint32).max() >= vocab_size:  # negative ids become huge
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise RequestError(
            f"{name} must have ids between 0 and {vocab_size - 1}; got {wrong}", name
        )


def _check_bias(bias: Floats | None, vocab_size: int) -> None:
    if bias is None:
        return
    if len(bias) != vocab_size:
        raise RequestError(
            f"embedding_bias must have {vocab_size} values, one per token of the vocabulary; "
            f"got {len(bias)}",
            "embedding_bias",
        )
    if not (bias < np.inf).all():
        raise RequestError(
            "embedding_bias values must be finite, or -inf to ban a token", "embedding_bias"
        )


def _check_token_masks(request: EngineRequest, masks: MaskWords, vocab_size: int) -> None:
    drafts, width = len(request.draft_ids), -(-vocab_size // 32)
    if masks.shape[1] != width:
        raise RequestError(
            f"token_masks must have {width} words per row for a vocabulary of {vocab_size}; "
            f"got {masks.shape[1]}",
            "token_masks",
        )
    if drafts and len(masks) != drafts + 1:
        raise RequestError(
            f"token_masks must have {drafts + 1} rows for {drafts} draft tokens; got {len(masks)}",
            "token_masks",
        )
    if not drafts and request.max_new_tokens > len(masks):
        raise RequestError(
            f"request_output_len must be at most {len(masks)}, the number of rows in token_masks; "
            f"got {request.max_new_tokens}",
            "request_output_len",
        )


def _check_draft_logits(request: EngineRequest, widths: tuple[int, ...]) -> None:
    drafts, logits = len(request.draft_ids), request.draft_logits
    if logits is None:
        if drafts and request.draft_acceptance_threshold is not None:
            raise RequestError(
                "draft_logits is missing; draft_acceptance_threshold requires it", "draft_logits"
            )
        return
    if len(logits) != drafts or logits.shape[1] not in widths:
        expected = " or ".join(str([drafts, width]) for width in widths)
        raise RequestError(
            f"draft_logits must have shape {expected} (draft tokens, vocabulary); "
            f"got {list(logits.shape)}",
            "draft_logits",
        )
