"""Convert the tensors of a call to an `EngineRequest`. Reject what no engine can serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.engines.engine import (
    MAX_BRANCHES,
    NO_IDS,
    EngineRequest,
    Floats,
    Ids,
    MaskWords,
    SamplingParams,
    Words,
)
from tandem.engines.errors import RequestError, UnsupportedError
from tandem.sampling.params import NUMBERS, Bounds, sampling_fields

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Read: TypeAlias = Callable[[str, Array], Any]  # reads a named tensor; raises RequestError

# Inputs that are read elsewhere or have no effect here: hints, inputs of beam search, and inputs
# that matter only in combination with another one.
_UNREAD = {
    tensors.INPUT_LENGTHS,
    tensors.STOP,
    tensors.PAD_ID,
    tensors.LEN_PENALTY,
    tensors.EARLY_STOPPING,
    tensors.BEAM_SEARCH_DIVERSITY_RATE,
    tensors.RUNTIME_TOP_P_MIN,
    tensors.RUNTIME_TOP_P_RESET_IDS,
    tensors.RETENTION_TOKEN_RANGE_STARTS,
    tensors.RETENTION_TOKEN_RANGE_ENDS,
    tensors.RETENTION_TOKEN_RANGE_PRIORITIES,
    tensors.RETENTION_TOKEN_RANGE_DURATIONS_MS,
    tensors.RETENTION_DECODE_PRIORITY,
    tensors.RETENTION_DECODE_DURATION_MS,
}
# Inputs that NVIDIA's preprocessing fills with zeros or the pad id if the request doesn't set them.
_FILLED = {tensors.DECODER_INPUT_IDS, tensors.PROMPT_TABLE_EXTRA_IDS}
# Inputs that support only one value.
_FIXED = {
    tensors.NUM_RETURN_SEQUENCES: 1,
    tensors.BEAM_WIDTH: 1,
    tensors.RUNTIME_TOP_P_DECAY: 1.0,
}


def decode(
    arrays: Arrays, request_id: str, arrival_time_ns: int, *, exclude_input: bool = True
) -> EngineRequest:
    """Build a request from a call's tensors. Each tensor has a leading batch dimension of 1.

    A tensor without elements counts as absent, because NVIDIA's own callers send such tensors.
    exclude_input: value to use if the call doesn't set `exclude_input_in_output`. Raises
    RequestError, which names the tensor, if a tensor is missing, malformed or unsupported.
    """
    fields: dict[str, Any] = {"exclude_input": exclude_input}
    sampling: dict[str, Any] = {}
    numbers: dict[str, float] = {}
    pad_id = arrays.get(tensors.PAD_ID)
    for name, array in arrays.items():
        if not array.size:
            continue
        if array.ndim and array.shape[0] != 1:
            raise RequestError(f"{name} must have a batch size of 1; got {array.shape[0]}", name)
        if name in _FIELDS:
            field, read = _FIELDS[name]
            fields[field] = read(name, array)
        elif name in _SAMPLING:
            field, read = _SAMPLING[name]
            sampling[field] = read(name, array)
        elif name in _NUMBERS:
            field, read = _NUMBERS[name]
            numbers[field] = read(name, array)
        else:
            _check_unread(name, array, pad_id)
    _check_context(arrays, fields.get("input_ids", NO_IDS))
    if "max_new_tokens" not in fields:
        raise RequestError(f"{tensors.REQUEST_OUTPUT_LEN} is missing", tensors.REQUEST_OUTPUT_LEN)
    return EngineRequest(
        request_id=request_id,
        sampling=SamplingParams(**sampling, **sampling_fields(numbers)),
        arrival_time_ns=arrival_time_ns,
        **fields,
    )


def flag(arrays: Arrays, name: str) -> bool:
    return name in arrays and _flag(name, arrays[name])


def _check_unread(name: str, array: Array, pad_id: Array | None) -> None:
    if name in _FILLED:
        nothing = {0} if pad_id is None or not pad_id.size else {0, pad_id.flat[0]}
        if not nothing.issuperset(array.flat):
            raise UnsupportedError(f"{name} isn't supported by this engine; omit it", name)
    elif name in _FIXED:
        if array.flat[0] != _FIXED[name]:  # type: ignore[index]
            raise UnsupportedError(f"{name} must be {_FIXED[name]}; got {array.flat[0]}", name)  # type: ignore[index]
    elif name not in _UNREAD:
        raise UnsupportedError(f"{name} isn't supported by this engine; omit it", name)


def _check_context(arrays: Arrays, ids: Ids) -> None:
    if not len(ids):
        raise RequestError(f"{tensors.INPUT_IDS} is missing or empty", tensors.INPUT_IDS)
    if tensors.INPUT_LENGTHS in arrays:
        length = int(_scalar(tensors.INPUT_LENGTHS, arrays[tensors.INPUT_LENGTHS]))
        if length != len(ids):
            raise RequestError(
                f"{tensors.INPUT_LENGTHS} must be {len(ids)}, the length of {tensors.INPUT_IDS}; "
                f"got {length}",
                tensors.INPUT_LENGTHS,
            )


def _scalar(name: str, array: Array) -> Any:
    if array.size != 1:
        raise RequestError(f"{name} must have one value; got shape {list(array.shape)}", name)
    return array.item()


def _flag(name: str, array: Array) -> bool:
    return bool(_scalar(name, array))


def _end_id(name: str, array: Array) -> int | None:
    value = int(_scalar(name, array))
    return value if value >= 0 else None


def _number(bounds: Bounds) -> Read:
    def read(name: str, array: Array) -> Any:
        value = _scalar(name, array)
        if fault := bounds.fault(value):
            raise RequestError(f"{name} {fault}", name)
        return value

    return read


def _row(dims: int) -> Read:
    """Return a reader that removes the batch dimension and requires `dims` other dimensions.

    The reader raises RequestError if the tensor has a different shape.
    """

    def read(name: str, array: Array) -> Array:
        if array.ndim != dims + 1:
            raise RequestError(
                f"{name} must have {dims + 1} dimensions, the batch included; "
                f"got shape {list(array.shape)}",
                name,
            )
        return np.ascontiguousarray(array[0])

    return read


def _words(name: str, array: Array) -> Words:
    """Read NVIDIA's word list [2, n]: token ids, and the end offset of each word (or -1)."""
    table = _row(2)(name, array)
    if len(table) != 2:
        raise RequestError(f"{name} must have shape [1, 2, n]; got {list(array.shape)}", name)
    ids, ends = table[0], table[1][table[1] >= 0]
    if (ends[1:] < ends[:-1]).any() or (len(ends) and ends[-1] > len(ids)):
        raise RequestError(f"{name} must have ends in ascending order, up to {len(ids)}", name)
    return Words(ids, ends)


_share = _number(Bounds(0, 1))
_count = _number(Bounds(minimum=0))

_FIELDS: dict[str, tuple[str, Read]] = {
    tensors.INPUT_IDS: ("input_ids", _row(1)),
    tensors.REQUEST_OUTPUT_LEN: ("max_new_tokens", _number(Bounds(minimum=1))),
    tensors.DRAFT_INPUT_IDS: ("draft_ids", _row(1)),
    tensors.DRAFT_LOGITS: ("draft_logits", _row(2)),
    tensors.DRAFT_ACCEPTANCE_THRESHOLD: ("draft_acceptance_threshold", _share),
    tensors.TOKEN_MASKS: ("token_masks", _row(2)),
    tensors.END_ID: ("end_id", _end_id),
    tensors.STOP_WORDS_LIST: ("stop_words", _words),
    tensors.DRAFT_STOP_PROBABILITY: ("draft_stop_probability", _share),
    tensors.RETURN_LOG_PROBS: ("return_log_probs", _flag),
    tensors.RETURN_PROMPT_LOG_PROBS: ("return_prompt_log_probs", _flag),
    tensors.NUM_TOP_LOG_PROBS: (
        "num_top_log_probs",
        _number(Bounds(0, tensors.MAX_TOP_LOG_PROBS)),
    ),
    tensors.RETURN_CONTEXT_LOGITS: ("return_context_logits", _flag),
    tensors.RETURN_GENERATION_LOGITS: ("return_generation_logits", _flag),
    tensors.RETURN_PERF_METRICS: ("return_perf_metrics", _flag),
    tensors.RETURN_NUM_INPUT_TOKENS: ("return_num_input_tokens", _flag),
    tensors.RETURN_NUM_OUTPUT_TOKENS: ("return_num_output_tokens", _flag),
    tensors.STREAMING: ("streaming", _flag),
    tensors.EXCLUDE_INPUT_IN_OUTPUT: ("exclude_input", _flag),
    tensors.LORA_TASK_ID: ("lora_task_id", _count),
    tensors.CACHE_SALT: ("cache_salt", _scalar),
    tensors.BRANCH_COUNTS: ("branch_counts", _row(1)),
    tensors.BRANCH_OUTPUT_LEN: ("branch_output_len", _row(1)),
    tensors.DECODE_AHEAD_LEN: ("decode_ahead_len", _count),
}
_SAMPLING: dict[str, tuple[str, Read]] = {
    tensors.BAD_WORDS_LIST: ("bad_words", _words),
    tensors.EMBEDDING_BIAS: ("embedding_bias", _row(1)),
    tensors.MIN_TOKENS: ("min_tokens", _count),
    tensors.SEED: ("seed", _scalar),
}
_NUMBERS: dict[str, tuple[str, Read]] = {
    number.engine: (name, _number(number.bounds)) for name, number in NUMBERS.items()
}


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
    if request.decode_ahead_len and (
        len(request.draft_ids) or request.token_masks is not None or request.branches
    ):
        raise RequestError(
            "decode_ahead_len can't be combined with draft_input_ids, token_masks or branch_counts",
            "decode_ahead_len",
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
    new = request.max_new_tokens + request.decode_ahead_len
    total = len(request.input_ids) + max(new, drafts + 1)
    if total > limits.max_seq_len:
        raise RequestError(
            f"input_ids ({len(request.input_ids)} tokens) with request_output_len "
            f"({new}) and draft_input_ids ({drafts}) need {total} tokens; "
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
        "return_generation_logits": request.return_generation_logits,
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
