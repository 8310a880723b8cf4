"""Rejects calls that none of our engines can serve."""

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
        """Maximum number of tokens of a context and its answer together."""

    @property
    def max_draft_len(self) -> int:
        """Maximum number of draft tokens that it verifies."""

    @property
    def drafts_itself(self) -> bool:
        """Whether it takes no drafts, because it drafts by itself."""


def check(
    request: EngineRequest,
    limits: Limits,
    vocab_size: int,
    draft_vocab_size: int | None = None,
    num_adapters: int = 0,
) -> None:
    """Raise RequestError if the call cannot be served. The error names the input.

    draft_vocab_size: alternative width of draft logits, for the same vocabulary with other padding.
    num_adapters: number of LoRA adapters of the engine.
    """
    if request.lora_task_id and not num_adapters:
        raise UnsupportedError("lora_task_id is not supported by this engine")
    if request.lora_task_id > num_adapters:
        raise RequestError(
            f"lora_task_id must be between 0 and {num_adapters}; got {request.lora_task_id}"
        )
    if request.branches:
        _check_branches(request, limits)
    else:
        if len(request.branch_output_len) or request.branch_seeds is not None:
            raise RequestError(
                "branch_counts is missing; branch_output_len and branch_seeds need it"
            )
        _check_lengths(request, limits)
    _check_ids("input_ids", request.input_ids, vocab_size)
    _check_ids("draft_input_ids", request.draft_ids, vocab_size)
    _check_ids("bad_words_list", request.sampling.bad_words.ids, vocab_size)
    if request.end_id is not None and request.end_id >= vocab_size:
        raise RequestError(
            f"end_id {request.end_id} is outside the vocabulary (0..{vocab_size - 1})"
        )
    _check_bias(request.sampling.embedding_bias, vocab_size)
    if request.token_masks is not None:
        _check_token_masks(request, request.token_masks, limits, vocab_size)
    _check_draft_logits(request, (vocab_size, *filter(None, [draft_vocab_size])))


def _check_lengths(request: EngineRequest, limits: Limits) -> None:
    drafts = len(request.draft_ids)
    if drafts and limits.drafts_itself:
        raise UnsupportedError(
            f"draft_input_ids has {drafts} tokens; this engine drafts by itself and verifies no "
            "others: send none"
        )
    if drafts > limits.max_draft_len:
        raise RequestError(
            f"draft_input_ids has {drafts} tokens; this engine verifies up to "
            f"{limits.max_draft_len}"
        )
    total = len(request.input_ids) + max(request.max_new_tokens, drafts + 1)
    if total > limits.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with request_output_len "
            f"({request.max_new_tokens}) and draft_input_ids ({drafts}) reach {total} tokens; "
            f"max_seq_len is {limits.max_seq_len}"
        )


def _check_branches(request: EngineRequest, limits: Limits) -> None:
    counts, lengths = request.branch_counts, request.branch_output_len
    assert counts is not None
    if limits.drafts_itself:
        raise UnsupportedError("branch_counts: this engine drafts by itself; send none")
    _check_branches_alone(request)
    seeds = counts if request.branch_seeds is None else request.branch_seeds
    wanted = len(request.draft_ids) + 1
    for name, array in (
        ("branch_counts", counts),
        ("branch_output_len", lengths),
        ("branch_seeds", seeds),
    ):
        if len(array) != wanted:
            raise RequestError(
                f"{name} has {len(array)} values; draft_input_ids ({wanted - 1} tokens) asks for "
                f"{wanted}"
            )
        if array.min() < 0:
            raise RequestError(f"{name} holds {array.min()}; it must not be negative")
    asked = int(counts.sum(dtype=np.int64))
    if asked > MAX_BRANCHES:
        raise RequestError(
            f"branch_counts asks for {asked} branches; one call drafts up to {MAX_BRANCHES}"
        )
    reach = (np.arange(1, wanted + 1) + lengths)[(counts > 0) & (lengths > 0)].max(initial=wanted)
    if len(request.input_ids) + reach > limits.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with draft_input_ids ({wanted - 1}) and "
            f"branch_output_len reach {len(request.input_ids) + reach} tokens; max_seq_len is "
            f"{limits.max_seq_len}"
        )


def _check_branches_alone(request: EngineRequest) -> None:
    refused = {
        "draft_logits": request.draft_logits is not None,
        "draft_acceptance_threshold": request.draft_acceptance_threshold is not None,
        "token_masks": request.token_masks is not None,
        "return_context_logits": request.return_context_logits,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "num_top_log_probs": request.num_top_log_probs > 0,
        "streaming": request.streaming,
    }
    refuse(refused, "with branch_counts; leave it out")


def refuse(given: Mapping[str, bool], why: str) -> None:
    """Raise UnsupportedError ("NAME is not supported WHY") for the first input that is sent."""
    for name, is_given in given.items():
        if is_given:
            raise UnsupportedError(f"{name} is not supported {why}")


def _check_ids(name: str, ids: Ids, vocab_size: int) -> None:
    if len(ids) and ids.view(np.uint32).max() >= vocab_size:  # below zero is above all others
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise RequestError(f"{name} holds {wrong}; token ids are 0..{vocab_size - 1}")


def _check_bias(bias: Floats | None, vocab_size: int) -> None:
    if bias is None:
        return
    if len(bias) != vocab_size:
        raise RequestError(
            f"embedding_bias has {len(bias)} values; the vocabulary has {vocab_size}"
        )
    if not (bias < np.inf).all():
        raise RequestError(
            "embedding_bias holds a value that is infinite or no number; only -inf, a ban, may be"
        )


def _check_token_masks(
    request: EngineRequest, masks: MaskWords, limits: Limits, vocab_size: int
) -> None:
    if limits.drafts_itself and request.max_new_tokens > 1:
        raise UnsupportedError(
            f"request_output_len must be 1 with token_masks; got {request.max_new_tokens}: this "
            "engine drafts by itself"
        )
    drafts, width = len(request.draft_ids), -(-vocab_size // 32)
    if masks.shape[1] != width:
        raise RequestError(
            f"token_masks has shape {list(masks.shape)}; a vocabulary of {vocab_size} tokens asks "
            f"for {width} words a row"
        )
    if drafts and len(masks) != drafts + 1:
        raise RequestError(
            f"token_masks has {len(masks)} rows; draft_input_ids ({drafts} tokens) asks for "
            f"{drafts + 1}"
        )
    if not drafts and request.max_new_tokens > len(masks):
        raise RequestError(
            f"request_output_len is {request.max_new_tokens}; token_masks reaches {len(masks)} "
            "tokens"
        )


def _check_draft_logits(request: EngineRequest, widths: tuple[int, ...]) -> None:
    drafts, logits = len(request.draft_ids), request.draft_logits
    if logits is None:
        if drafts and request.draft_acceptance_threshold is not None:
            raise RequestError(
                "draft_logits is missing; draft_acceptance_threshold compares it with the "
                "target's logits"
            )
        return
    if len(logits) != drafts or logits.shape[1] not in widths:
        expected = " or ".join(str([drafts, width]) for width in widths)
        raise RequestError(
            f"draft_logits has shape {list(logits.shape)}; "
            f"draft_input_ids and the vocabulary ask for {expected}"
        )
