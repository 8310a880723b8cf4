"""Convert the contract's tensors to an `EngineRequest`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.engines.errors import RequestError, UnsupportedError
from tandem.engines.request import NO_IDS, EngineRequest, Ids, SamplingParams
from tandem.engines.words import Words
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


def count(arrays: Arrays, name: str) -> int:
    """Return an INT32 scalar of at least 0, or 0 if the tensor is absent. Raises RequestError."""
    return int(_count(name, arrays[name])) if name in arrays and arrays[name].size else 0


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
