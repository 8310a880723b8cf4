"""Converts engine calls into Triton requests, and Triton's responses into results.

Word lists have the format of NVIDIA's `bad_words_list` and `stop_words_list`: a table [2, n]. Row 0
contains the ids of all words, row 1 the end offset of each word, padded with -1. The words [7, 8]
and [9] become [[7, 8, 9], [2, 3, -1]].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.bls.errors import EngineCallError
from tandem.bls.guidance import masked_bias
from tandem.bls.lossless import draft_gets_bans, draft_sampling, verification_logits
from tandem.bls.ports import (
    BranchDraft,
    Draft,
    DraftLogits,
    EngineCall,
    EngineResult,
    KvBlocks,
    PromptLogProbs,
    TopLogProbs,
)
from tandem.bls.request import Request, TokenIds
from tandem.bls.settings import EngineSettings
from tandem.contract import engine as tensors

if TYPE_CHECKING:
    from tandem.bls.triton.engine_calls import EngineClient

DTYPES = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}


def scalar(tensor: Any, value: Any) -> Any:
    """Return a tensor [1, 1] of the contract's type."""
    return pb_utils.Tensor(tensor, np.array([[value]], DTYPES[tensor.dtype]))


def row(tensor: Any, values: NDArray[Any]) -> Any:
    """Return a tensor [1, *values.shape]."""
    return pb_utils.Tensor(tensor, values[np.newaxis])


def optional_row(tensor: Any, values: NDArray[Any] | None) -> list[Any]:
    """Return a list with the tensor of an optional input, or an empty list."""
    return [] if values is None else [row(tensor, values)]


def one_token_words(token_ids: Iterable[int]) -> TokenIds:
    """Return a table of words with one token each."""
    ids = list(token_ids)
    return np.array([ids, range(1, len(ids) + 1)], np.int32)


def join_tables(first: TokenIds | None, second: TokenIds | None) -> TokenIds | None:
    """Return one table with the words of two tables. None stands for a table without words."""
    if first is None or second is None:
        return second if first is None else first
    (ids, ends), (more_ids, more_ends) = _parts(first), _parts(second)
    return _table(np.concatenate([ids, more_ids]), np.concatenate([ends, more_ends + len(ids)]))


def drop_unknown(table: TokenIds | None, vocab_size: int) -> TokenIds | None:
    """Return the words whose ids are all below ``vocab_size``; the engine can't generate others."""
    if table is None:
        return None
    ids, ends = _parts(table)
    if not len(ends):
        return None
    if (ids < vocab_size).all():
        return table
    lengths = np.diff(ends, prepend=0)
    unknown = np.add.reduceat(ids >= vocab_size, ends - lengths) > 0
    kept_ids = ids[np.repeat(~unknown, lengths)]
    return _table(kept_ids, np.cumsum(lengths[~unknown])) if len(kept_ids) else None


def _parts(table: TokenIds) -> tuple[TokenIds, TokenIds]:
    """Return the ids of all words, and the words' end offsets without padding."""
    ends = table[1][table[1] >= 0]
    return table[0][: ends[-1] if len(ends) else 0], ends


def _table(ids: TokenIds, ends: TokenIds) -> TokenIds:
    table = np.full((2, len(ids)), -1, np.int32)
    table[0], table[1, : len(ends)] = ids, ends
    return table


class RequestBuilder:
    """Builds all calls of one client request to one engine. Constant tensors are built once."""

    def __init__(self, engine: EngineClient, request: Request) -> None:
        self._engine = engine
        self._request = request
        sampling, gets_bans = request.sampling, True
        if engine.is_draft:
            sampling = draft_sampling(request, engine.loop)
            gets_bans = draft_gets_bans(request, engine.loop)
        self._sampling = [scalar(name, value) for name, value in sampling.engine_inputs().items()]
        vocab_size = engine.settings.vocab_size
        self._sampling_bias = _fit_to_vocab(sampling.embedding_bias, vocab_size)
        self._request_bias = optional_row(tensors.EMBEDDING_BIAS, self._sampling_bias)
        bad_words = drop_unknown(sampling.bad_words, vocab_size)
        ends = drop_unknown(one_token_words(request.end_ids if gets_bans else ()), vocab_size)
        self._bad_words = optional_row(tensors.BAD_WORDS_LIST, bad_words)
        self._bad_words_and_ends = optional_row(
            tensors.BAD_WORDS_LIST, join_tables(ends, bad_words)
        )
        # Cached, because values recur and reusing a tensor is cheaper.
        self._scalar = cache(scalar)
        self._stop_words = cache(
            lambda ids: optional_row(
                tensors.STOP_WORDS_LIST, drop_unknown(one_token_words(ids), vocab_size)
            )
        )
        self._default_outputs = [*REQUIRED, tensors.ARRIVAL_TIME_NS, tensors.LAST_TOKEN_TIME_NS]
        if not engine.is_draft:
            self._default_outputs.append(tensors.KV_CACHE_REUSED_BLOCKS)
            if request.return_perf_metrics:
                self._default_outputs.append(tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS)
        if request.drafter_kind.in_engine:
            self._default_outputs += [
                tensors.TOTAL_DRAFT_TOKENS,
                tensors.TOTAL_ACCEPTED_DRAFT_TOKENS,
            ]
        adapters = engine.settings.lora_adapters
        number = adapters.index(request.lora_name) + 1 if request.lora_name in adapters else None
        if request.lora_task is not None and not engine.is_draft:
            number = request.lora_task.id
        self._constant = [] if number is None else [scalar(tensors.LORA_TASK_ID, number)]
        if request.cache_salt and engine.settings.capabilities.cache_salt:
            self._constant.append(scalar(tensors.CACHE_SALT, request.cache_salt))
        self._lora_folder = engine.folder / f"lora-{number}"
        self._logits_threshold = (
            [scalar(tensors.DRAFT_ACCEPTANCE_THRESHOLD, request.draft_acceptance_threshold)]
            if request.draft_acceptance_threshold is not None
            else []
        )

    def build(self, call: EngineCall, request_id: str, *, with_weights: bool = False) -> Any:
        """Return the BLS request for ``call``.

        with_weights: include the weights of the LoRA adapter.
        """
        inputs = [
            row(tensors.INPUT_IDS, call.context),
            scalar(tensors.INPUT_LENGTHS, len(call.context)),
            self._scalar(tensors.REQUEST_OUTPUT_LEN, call.max_new_tokens),
            # Without this input, TensorRT-LLM returns neither times nor KV blocks.
            self._scalar(tensors.RETURN_PERF_METRICS, True),
            *self._sampling,
            *self._constant,
            *self._bias(call),
            *(self._bad_words_and_ends if call.ban_end_ids else self._bad_words),
        ]
        outputs: list[str] = [*self._default_outputs]
        if with_weights:
            inputs += [pb_utils.Tensor(*item) for item in self._lora_weights().items()]
        if not self._request.sampling.greedy:
            inputs.append(scalar(tensors.SEED, call.seed))
        if call.end_id is not None:
            inputs.append(self._scalar(tensors.END_ID, call.end_id))
        if call.stop_ids:
            inputs += self._stop_words(call.stop_ids)
        if call.decode_ahead:
            inputs.append(scalar(tensors.DECODE_AHEAD_LEN, call.decode_ahead))
        if call.wants_logits:
            inputs.append(self._scalar(tensors.RETURN_GENERATION_LOGITS, True))
            outputs.append(self._engine.logits_output)
        add = self._add_draft_options if self._engine.is_draft else self._add_target_options
        add(call, inputs, outputs)
        return pb_utils.InferenceRequest(
            model_name=self._engine.settings.model,
            request_id=request_id,
            requested_output_names=outputs,
            inputs=inputs,
            timeout=int(1e6 * self._engine.timeout_of(call)),  # for remote engines
        )

    def _lora_weights(self) -> Mapping[str, NDArray[Any]]:
        """Return the adapter's weights; empty if the client sent only its id."""
        if self._request.lora_task is not None:
            return self._request.lora_task.arrays
        files = tensors.LORA_FILES.items()
        return {tensor: np.load(self._lora_folder / file) for tensor, file in files}

    def _add_draft_options(self, call: EngineCall, inputs: list[Any], outputs: list[str]) -> None:
        if call.wants_log_probs:
            inputs.append(self._scalar(tensors.RETURN_LOG_PROBS, True))
            outputs.append(tensors.OUTPUT_LOG_PROBS)
        if call.stop_probability:
            inputs.append(self._scalar(tensors.DRAFT_STOP_PROBABILITY, call.stop_probability))
        if call.branching is not None:
            counts, lengths = (np.array(row, np.int32) for row in call.branching)
            inputs.append(row(tensors.BRANCH_COUNTS, counts))
            inputs.append(row(tensors.BRANCH_OUTPUT_LEN, lengths))
            if len(call.draft):
                inputs.append(row(tensors.DRAFT_INPUT_IDS, call.draft.tokens))
            outputs += BRANCHES

    def _add_target_options(self, call: EngineCall, inputs: list[Any], outputs: list[str]) -> None:
        request = self._request
        if len(call.draft):
            inputs += self._draft_inputs(call.draft)
        if call.token_masks is not None and self._engine.settings.capabilities.masks_tokens:
            inputs.append(row(tensors.TOKEN_MASKS, call.token_masks))
        if request.num_top_log_probs:
            inputs.append(scalar(tensors.NUM_TOP_LOG_PROBS, request.num_top_log_probs))
        if request.return_log_probs:
            inputs.append(self._scalar(tensors.RETURN_LOG_PROBS, True))
            outputs.append(tensors.OUTPUT_LOG_PROBS)
            if request.num_top_log_probs:
                outputs += [tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS]
        if len(call.context) > len(request.prompt_ids):
            return  # in later calls, data about the prompt would force a prefill
        if request.return_context_logits:
            inputs.append(scalar(tensors.RETURN_CONTEXT_LOGITS, True))
            outputs.append(tensors.CONTEXT_LOGITS)
        if request.return_prompt_log_probs:
            inputs.append(scalar(tensors.RETURN_PROMPT_LOG_PROBS, True))
            outputs.append(tensors.PROMPT_LOG_PROBS)
            if request.num_top_log_probs:
                outputs += [tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS]

    def _bias(self, call: EngineCall) -> list[Any]:
        """Return the request's bias, combined with the call's mask if the engine takes no masks.

        A call with such a mask generates one token, because a bias is the same at every position.
        """
        if call.token_masks is None or self._engine.settings.capabilities.masks_tokens:
            return self._request_bias
        width = self._engine.settings.vocab_size
        bias = masked_bias(self._sampling_bias, call.token_masks[0], width)
        return [row(tensors.EMBEDDING_BIAS, bias)]

    def _draft_inputs(self, draft: Draft) -> list[Any]:
        """Return the tensors of a draft to verify: its ids and, unless ids are compared, logits."""
        inputs = [row(tensors.DRAFT_INPUT_IDS, draft.tokens)]
        settings = self._engine.loop
        if settings.shared_logits:
            if draft.logits is not None:
                inputs.append(pb_utils.Tensor(tensors.SHARED_LOGITS_HANDLE, draft.logits))
                inputs += self._logits_threshold
            return inputs
        draft_logits: NDArray[Any] | None = None  # [1, n, width]
        if draft.logits is not None:
            array = draft.logits.as_numpy()
            draft_logits = array.reshape(1, *array.shape[-2:])
        logits = verification_logits(draft, draft_logits, self._request, settings)
        if logits is not None:
            inputs.append(pb_utils.Tensor(tensors.DRAFT_LOGITS, logits))
            inputs += self._logits_threshold
        return inputs


def _fit_to_vocab(bias: NDArray[np.float32] | None, vocab_size: int) -> NDArray[np.float32] | None:
    """Return the bias, cut or padded to the engine's ``vocab_size``."""
    if bias is None:
        return None
    return (
        np.pad(bias, (0, vocab_size - len(bias))) if len(bias) < vocab_size else bias[:vocab_size]
    )


# TensorRT-LLM rejects a call that doesn't request both outputs.
REQUIRED = [tensors.OUTPUT_IDS, tensors.SEQUENCE_LENGTH]
BRANCHES = [tensors.BRANCH_OUTCOMES, tensors.BRANCH_IDS, tensors.BRANCH_LENGTHS]


def read_result(
    response: Any, call: EngineCall, seconds: float, engine: EngineSettings
) -> EngineResult:
    """Return the result in the response to ``call``. seconds: duration of the call.

    Raises EngineCallError if the response is malformed. It may come from another machine.
    """
    try:
        return _read_result(response, call, seconds, engine)
    except (ValueError, TypeError, IndexError) as error:
        raise EngineCallError(engine.model, f"its response is malformed: {error}") from error


def _read_result(
    response: Any, call: EngineCall, seconds: float, engine: EngineSettings
) -> EngineResult:
    outputs = {tensor.name(): tensor for tensor in response.output_tensors()}
    for tensor in REQUIRED if call.branching is None else REQUIRED + BRANCHES:
        if tensor not in outputs:
            raise EngineCallError(engine.model, f"'{tensor}' is missing from its response")
    length = outputs[tensors.SEQUENCE_LENGTH].as_numpy().item()
    tokens: TokenIds = outputs[tensors.OUTPUT_IDS].as_numpy().reshape(-1)[:length]
    if not engine.excludes_input:
        tokens = tokens[len(call.context) :]
    _check_ids(tokens, engine.vocab_size)
    branches = () if call.branching is None else _branches(outputs, engine.vocab_size)
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
        draft_logits=_draft_logits(outputs, len(tokens)) if is_draft else None,
        context_logits=_rows(outputs.get(tensors.CONTEXT_LOGITS)),
        kv_blocks=_kv_blocks(outputs),
        branches=branches,
    )


def _check_ids(tokens: TokenIds, vocab_size: int) -> None:
    """Raise ValueError for ids that the other engine would reject, which would end the request."""
    if tokens.dtype != np.int32:
        raise ValueError(f"token ids must be int32; got {tokens.dtype}")
    if len(tokens) and tokens.view(np.uint32).max() >= vocab_size:  # negative ids become huge
        raise ValueError(f"token ids must be between 0 and {vocab_size - 1}")


def _draft_logits(outputs: dict[str, Any], num_drafted: int) -> DraftLogits:
    """Return the draft engine's tensor, or a copy of a handle, which may outlive the response.

    Raises ValueError if a drafted token lacks its row, because the target would then reject the
    request.
    """
    handle = outputs.get(tensors.SHARED_LOGITS_HANDLE)
    if handle is not None:
        return handle.as_numpy().copy()
    logits = outputs.get(tensors.GENERATION_LOGITS)
    if logits is not None and logits.shape()[-2] < num_drafted:
        raise ValueError(f"it has logits of {logits.shape()[-2]} of {num_drafted} draft tokens")
    return logits


def _branches(outputs: dict[str, Any], vocab_size: int) -> tuple[BranchDraft, ...]:
    outcomes, ids, lengths = (outputs[tensor].as_numpy() for tensor in BRANCHES)
    lengths = lengths.reshape(-1)
    ids = ids.reshape(len(lengths), -1) if len(lengths) else ids
    _check_ids(ids.reshape(-1), vocab_size)
    return tuple(
        BranchDraft(num_accepted, token, ids[i, : lengths[i]])
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
