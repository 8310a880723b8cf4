"""From the contract's tensors to an `EngineRequest`. Pure: arrays in, a request or an error out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contract import engine as tensors
from engines.errors import RequestError
from engines.request import NO_IDS, EngineRequest, Ids, SamplingParams

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

# Inputs that change nothing here: hints, beam search's own, or inert without another input.
_INERT = {
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
# Inputs of which one value only can be honoured.
_FIXED = {
    tensors.NUM_RETURN_SEQUENCES: 1,
    tensors.BEAM_WIDTH: 1,
    tensors.RUNTIME_TOP_P_DECAY: 1.0,
}
_READ = {
    tensors.INPUT_IDS,
    tensors.INPUT_LENGTHS,
    tensors.REQUEST_OUTPUT_LEN,
    tensors.DRAFT_INPUT_IDS,
    tensors.DRAFT_LOGITS,
    tensors.DRAFT_ACCEPTANCE_THRESHOLD,
    tensors.END_ID,
    tensors.STOP_WORDS_LIST,
    tensors.BAD_WORDS_LIST,
    tensors.EMBEDDING_BIAS,
    tensors.TEMPERATURE,
    tensors.RUNTIME_TOP_K,
    tensors.RUNTIME_TOP_P,
    tensors.REPETITION_PENALTY,
    tensors.MIN_TOKENS,
    tensors.PRESENCE_PENALTY,
    tensors.FREQUENCY_PENALTY,
    tensors.SEED,
    tensors.RETURN_LOG_PROBS,
    tensors.RETURN_CONTEXT_LOGITS,
    tensors.RETURN_GENERATION_LOGITS,
    tensors.RETURN_PERF_METRICS,
    tensors.EXCLUDE_INPUT_IN_OUTPUT,
    tensors.STOP,
    tensors.STREAMING,
    tensors.RETURN_NUM_INPUT_TOKENS,
    tensors.RETURN_NUM_OUTPUT_TOKENS,
    tensors.DRAFT_STOP_PROBABILITY,
}


def decode(arrays: Arrays, request_id: str, arrival_time_ns: int) -> EngineRequest:
    """Build a request from a call's tensors, each with a leading batch dimension of 1.

    Raises RequestError, naming the tensor, for what is missing, malformed or not supported.
    """
    _refuse_unsupported(arrays)
    return EngineRequest(
        request_id=request_id,
        input_ids=_context(arrays),
        max_new_tokens=_required_positive(arrays, tensors.REQUEST_OUTPUT_LEN),
        draft_ids=_ids(arrays, tensors.DRAFT_INPUT_IDS),
        draft_logits=_row(arrays, tensors.DRAFT_LOGITS, 2),
        draft_acceptance_threshold=_number(
            arrays, tensors.DRAFT_ACCEPTANCE_THRESHOLD, None, low=0.0, high=1.0
        ),
        end_id=_end_id(arrays),
        stop_words=_words(arrays, tensors.STOP_WORDS_LIST),
        sampling=_sampling(arrays),
        draft_stop_probability=_number(
            arrays, tensors.DRAFT_STOP_PROBABILITY, None, low=0.0, high=1.0
        ),
        return_log_probs=flag(arrays, tensors.RETURN_LOG_PROBS),
        return_context_logits=flag(arrays, tensors.RETURN_CONTEXT_LOGITS),
        return_generation_logits=flag(arrays, tensors.RETURN_GENERATION_LOGITS),
        return_perf_metrics=flag(arrays, tensors.RETURN_PERF_METRICS),
        return_num_input_tokens=flag(arrays, tensors.RETURN_NUM_INPUT_TOKENS),
        return_num_output_tokens=flag(arrays, tensors.RETURN_NUM_OUTPUT_TOKENS),
        streaming=flag(arrays, tensors.STREAMING),
        exclude_input=flag(arrays, tensors.EXCLUDE_INPUT_IN_OUTPUT, default=True),
        arrival_time_ns=arrival_time_ns,
    )


def flag(arrays: Arrays, name: str, *, default: bool = False) -> bool:
    """Return a BOOL scalar."""
    value = _scalar(arrays, name)
    return default if value is None else bool(value)


def _sampling(arrays: Arrays) -> SamplingParams:
    temperature = _number(arrays, tensors.TEMPERATURE, None, low=0.0)
    penalty = _number(arrays, tensors.REPETITION_PENALTY, 1.0, low=0.0)
    if penalty == 0:
        raise RequestError(f"{tensors.REPETITION_PENALTY} is 0; it must be above 0")
    seed = _scalar(arrays, tensors.SEED)
    return SamplingParams(
        temperature=temperature,
        top_k=int(_number(arrays, tensors.RUNTIME_TOP_K, 0, low=0) or 0),
        top_p=_number(arrays, tensors.RUNTIME_TOP_P, 0.0, low=0.0, high=1.0) or 0.0,
        repetition_penalty=penalty or 1.0,
        presence_penalty=_number(arrays, tensors.PRESENCE_PENALTY, 0.0) or 0.0,
        frequency_penalty=_number(arrays, tensors.FREQUENCY_PENALTY, 0.0) or 0.0,
        bad_words=_words(arrays, tensors.BAD_WORDS_LIST),
        embedding_bias=_row(arrays, tensors.EMBEDDING_BIAS, 1),
        min_tokens=int(_number(arrays, tensors.MIN_TOKENS, 0, low=0) or 0),
        seed=None if seed is None else int(seed),
    )


def _refuse_unsupported(arrays: Arrays) -> None:
    for name, array in arrays.items():
        if array.ndim and array.shape[0] != 1:
            raise RequestError(
                f"{name} has a batch of {array.shape[0]}; the engine takes one sequence a call"
            )
        if name in _FIXED and array.size and array.flat[0] != _FIXED[name]:  # type: ignore[index]
            raise RequestError(
                f"{name} {array.flat[0]} is not supported by this engine; use {_FIXED[name]}"  # type: ignore[index]
            )
        if name not in _READ and name not in _INERT and name not in _FIXED:
            raise RequestError(f"{name} is not supported by this engine")


def _context(arrays: Arrays) -> Ids:
    ids = _ids(arrays, tensors.INPUT_IDS)
    if not len(ids):
        raise RequestError(f"{tensors.INPUT_IDS} is missing or empty")
    length = _scalar(arrays, tensors.INPUT_LENGTHS)
    if length is not None and int(length) != len(ids):
        raise RequestError(
            f"{tensors.INPUT_LENGTHS} is {length}; {tensors.INPUT_IDS} has {len(ids)} tokens"
        )
    return ids


def _end_id(arrays: Arrays) -> int | None:
    value = _scalar(arrays, tensors.END_ID)
    return None if value is None or value < 0 else int(value)


def _required_positive(arrays: Arrays, name: str) -> int:
    value = _scalar(arrays, name)
    if value is None:
        raise RequestError(f"{name} is missing")
    if value < 1:
        raise RequestError(f"{name} is {value}; it must be at least 1")
    return int(value)


def _scalar(arrays: Arrays, name: str) -> Any:
    array = arrays.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise RequestError(f"{name} has shape {list(array.shape)}; one value is wanted")
    return array.flat[0]


def _number(
    arrays: Arrays,
    name: str,
    default: float | None,
    *,
    low: float = -np.inf,
    high: float = np.inf,
) -> float | None:
    value = _scalar(arrays, name)
    if value is None:
        return default
    if not (np.isfinite(value) and low <= value <= high):
        bounds = f"at least {low:g}" if high == np.inf else f"from {low:g} to {high:g}"
        wanted = bounds if low > -np.inf else "finite"
        raise RequestError(f"{name} is {value}; it must be {wanted}")
    return float(value)


def _ids(arrays: Arrays, name: str) -> Ids:
    row = _row(arrays, name, 1)
    return NO_IDS if row is None else row


def _row(arrays: Arrays, name: str, dims: int) -> Any:
    """The tensor of `dims` dimensions behind the batch dimension, or None where it is absent."""
    array = arrays.get(name)
    if array is None:
        return None
    if array.ndim != dims + 1:
        raise RequestError(
            f"{name} has shape {list(array.shape)}; {dims} dimension(s) behind a batch of 1 wanted"
        )
    return np.ascontiguousarray(array[0])


def _words(arrays: Arrays, name: str) -> tuple[tuple[int, ...], ...]:
    """Token sequences from NVIDIA's word list [2, n]: ids, and where each sequence ends (or -1)."""
    table = _row(arrays, name, 2)
    if table is None:
        return ()
    if len(table) != 2:
        raise RequestError(f"{name} has shape {list(table.shape)}; [2, n] is wanted")
    ids, ends = table.tolist()
    ends = [end for end in ends if end >= 0]
    if ends != sorted(ends) or (ends and ends[-1] > len(ids)):
        raise RequestError(f"{name}: its ends {ends} do not rise within {len(ids)} ids")
    words = (tuple(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False))
    return tuple(word for word in words if word)
