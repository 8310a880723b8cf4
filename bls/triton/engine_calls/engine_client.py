"""Converts engine calls into Triton requests, and the responses into answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.bls.effects import (
    BranchDraft,
    Draft,
    EngineAnswer,
    EngineCall,
    EngineRole,
    KvBlocks,
    PromptLogProbs,
)
from tandem.bls.errors import EngineCallError
from tandem.bls.exactness.lossless import draft_gets_bans, draft_sampling, verification_logits
from tandem.bls.guided.guidance import masked_bias
from tandem.bls.parsing.word_lists import joined, known, one_token_words
from tandem.bls.request import Request, TokenIds
from tandem.bls.settings import EngineSettings, LoopSettings
from tandem.bls.text.token_details import TopLogProbs
from tandem.contract import engine as tensors

# TensorRT-LLM rejects a call that doesn't request both outputs.
REQUIRED = [tensors.OUTPUT_IDS, tensors.SEQUENCE_LENGTH]
# Number of context tokens that a draft engine must process within its timeout. Draft engines
# process thousands of tokens per second. A slower one isn't worth calling.
CONTEXT_TOKENS = 2048
BRANCHES = [tensors.BRANCH_OUTCOMES, tensors.BRANCH_IDS, tensors.BRANCH_LENGTHS]


class EngineClient:
    """The target or the draft engine, with its timeouts."""

    def __init__(
        self,
        role: EngineRole,
        settings: EngineSettings,
        loop: LoopSettings,
        folder: Path = Path(),
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.loop = loop
        self.is_draft = role == "draft"

    def timeout_of(self, call: EngineCall) -> float:
        """Return the timeout of a call in seconds.

        A draft call gets its timeout once per 2,048 context tokens. Most calls process only a few
        new tokens. But the first call of an answer and a call after an eviction process the whole
        context, so a slow call doesn't mean that the engine is unhealthy. A draft that takes longer
        than the target's timeout is useless.
        """
        if call.whole:
            return self.loop.request_timeout
        timeout = self.settings.timeout
        if not self.is_draft:
            return timeout
        whole_context = timeout * len(call.context) / CONTEXT_TOKENS
        return max(timeout, min(self.loop.target.timeout, whole_context))

    def stop_request(self, request_id: str) -> Any:
        """Return a request that stops the call ``request_id``. Its other inputs are dummies."""
        return self._smallest_request(request_id, _scalar(tensors.STOP, True))

    def probe_request(self, request_id: str) -> Any:
        """Return the cheapest real request: one new token after one context token."""
        return self._smallest_request(request_id, _scalar(tensors.RUNTIME_TOP_K, 1))

    def _smallest_request(self, request_id: str, purpose: Any) -> Any:
        return pb_utils.InferenceRequest(
            model_name=self.settings.model,
            request_id=request_id,
            requested_output_names=REQUIRED,
            inputs=[
                _row(tensors.INPUT_IDS, np.zeros(1, np.int32)),
                _scalar(tensors.INPUT_LENGTHS, 1),
                _scalar(tensors.REQUEST_OUTPUT_LEN, 1),
                purpose,
            ],
        )


class EngineRequests:
    """Builds all calls of one client request to one engine. Constant tensors are built once."""

    def __init__(self, engine: EngineClient, request: Request) -> None:
        self._engine = engine
        self._request = request
        sampling, gets_bans = request.sampling, True
        if engine.is_draft:
            sampling = draft_sampling(request, engine.loop)
            gets_bans = draft_gets_bans(request, engine.loop)
        self._sampling = [_scalar(name, value) for name, value in sampling.engine_inputs().items()]
        vocab_size = engine.settings.vocab_size
        self._sampling_bias = _widened(sampling.embedding_bias, vocab_size)
        self._request_bias = _optional_row(tensors.EMBEDDING_BIAS, self._sampling_bias)
        bad_words = known(sampling.bad_words, vocab_size)
        ends = known(one_token_words(request.end_ids if gets_bans else ()), vocab_size)
        self._bad_words = _optional_row(tensors.BAD_WORDS_LIST, bad_words)
        self._bad_words_and_ends = _optional_row(tensors.BAD_WORDS_LIST, joined(ends, bad_words))
        # Cached, because values recur and reusing a tensor is cheaper.
        self._scalar = cache(_scalar)
        self._stop_words = cache(
            lambda ids: _optional_row(
                tensors.STOP_WORDS_LIST, known(one_token_words(ids), vocab_size)
            )
        )
        shares_logits = engine.is_draft and engine.loop.shared_logits
        self._logits_output = (
            tensors.SHARED_LOGITS_HANDLE if shares_logits else tensors.GENERATION_LOGITS
        )
        self._always = [*REQUIRED, tensors.ARRIVAL_TIME_NS, tensors.LAST_TOKEN_TIME_NS]
        if not engine.is_draft:
            self._always.append(tensors.KV_CACHE_REUSED_BLOCKS)
            if request.return_perf_metrics:
                self._always.append(tensors.KV_CACHE_ALLOC_TOTAL_BLOCKS)
        if request.kind.in_engine:
            self._always += [tensors.TOTAL_DRAFT_TOKENS, tensors.TOTAL_ACCEPTED_DRAFT_TOKENS]
        adapters = engine.settings.lora_adapters
        number = adapters.index(request.lora_name) + 1 if request.lora_name in adapters else None
        if request.lora_task is not None and not engine.is_draft:
            number = request.lora_task.id
        self._lora = [] if number is None else [_scalar(tensors.LORA_TASK_ID, number)]
        self._lora_folder = engine.folder / f"lora-{number}"
        self._logits_threshold = (
            [_scalar(tensors.DRAFT_ACCEPTANCE_THRESHOLD, request.draft_acceptance_threshold)]
            if request.draft_acceptance_threshold is not None
            else []
        )

    def build(self, call: EngineCall, request_id: str, *, with_weights: bool = False) -> Any:
        """Return the BLS request for ``call``.

        with_weights: include the weights of the LoRA adapter.
        """
        inputs = [
            _row(tensors.INPUT_IDS, call.context),
            _scalar(tensors.INPUT_LENGTHS, len(call.context)),
            self._scalar(tensors.REQUEST_OUTPUT_LEN, call.max_new_tokens),
            # Without this input, TensorRT-LLM returns neither times nor KV blocks.
            self._scalar(tensors.RETURN_PERF_METRICS, True),
            *self._sampling,
            *self._lora,
            *self._bias(call),
            *(self._bad_words_and_ends if call.ban_end_ids else self._bad_words),
        ]
        outputs: list[str] = [*self._always]
        if with_weights:
            inputs += [pb_utils.Tensor(*item) for item in self._lora_weights().items()]
        if not self._request.sampling.greedy:
            inputs.append(_scalar(tensors.SEED, call.seed))
        if call.end_id is not None:
            inputs.append(self._scalar(tensors.END_ID, call.end_id))
        if call.stop_ids:
            inputs += self._stop_words(call.stop_ids)
        if call.wants_logits:
            inputs.append(self._scalar(tensors.RETURN_GENERATION_LOGITS, True))
            outputs.append(self._logits_output)
        add = self._add_draft_options if self._engine.is_draft else self._add_target_options
        add(call, inputs, outputs)
        return pb_utils.InferenceRequest(
            model_name=self._engine.settings.model,
            request_id=request_id,
            requested_output_names=outputs,
            inputs=inputs,
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
        if call.unread_logits is not None:
            inputs.append(pb_utils.Tensor(tensors.UNREAD_LOGITS_HANDLE, call.unread_logits))
        if call.branching is not None:
            counts, lengths = (np.array(row, np.int32) for row in call.branching)
            inputs.append(_row(tensors.BRANCH_COUNTS, counts))
            inputs.append(_row(tensors.BRANCH_OUTPUT_LEN, lengths))
            if len(call.draft):
                inputs.append(_row(tensors.DRAFT_INPUT_IDS, call.draft.tokens))
            outputs += BRANCHES

    def _add_target_options(self, call: EngineCall, inputs: list[Any], outputs: list[str]) -> None:
        request = self._request
        if len(call.draft):
            inputs += self._draft_inputs(call.draft)
        if call.token_masks is not None and self._engine.settings.capabilities.masks_tokens:
            inputs.append(_row(tensors.TOKEN_MASKS, call.token_masks))
        if request.num_top_log_probs:
            inputs.append(_scalar(tensors.NUM_TOP_LOG_PROBS, request.num_top_log_probs))
        if request.return_log_probs:
            inputs.append(self._scalar(tensors.RETURN_LOG_PROBS, True))
            outputs.append(tensors.OUTPUT_LOG_PROBS)
            if request.num_top_log_probs:
                outputs += [tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS]
        if len(call.context) > len(request.prompt_ids):
            return  # in later calls, data about the prompt would force a prefill
        if request.return_context_logits:
            inputs.append(_scalar(tensors.RETURN_CONTEXT_LOGITS, True))
            outputs.append(tensors.CONTEXT_LOGITS)
        if request.return_prompt_log_probs:
            inputs.append(_scalar(tensors.RETURN_PROMPT_LOG_PROBS, True))
            outputs.append(tensors.PROMPT_LOG_PROBS)
            if request.num_top_log_probs:
                outputs += [tensors.PROMPT_TOP_IDS, tensors.PROMPT_TOP_LOG_PROBS]

    def read(self, call: EngineCall, response: Any, seconds: float) -> EngineAnswer:
        """Return the answer in the response to ``call``. seconds: duration of the call."""
        outputs = {tensor.name(): tensor for tensor in response.output_tensors()}
        if tensors.OUTPUT_IDS not in outputs or tensors.SEQUENCE_LENGTH not in outputs:
            raise EngineCallError(
                self._engine.settings.model, f"'{tensors.OUTPUT_IDS}' is missing from its answer"
            )
        length = outputs[tensors.SEQUENCE_LENGTH].as_numpy().item()
        tokens: TokenIds = outputs[tensors.OUTPUT_IDS].as_numpy().reshape(-1)[:length]
        if not self._engine.settings.excludes_input:
            tokens = tokens[len(call.context) :]
        log_probs = outputs.get(tensors.OUTPUT_LOG_PROBS)
        answer = EngineAnswer(
            tokens=tokens,
            seconds=seconds,
            log_probs=None if log_probs is None else log_probs.as_numpy().reshape(-1),
            top=_top(outputs, tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS),
            prompt_log_probs=_prompt_log_probs(outputs),
            logits=self._logits(outputs),
            context_logits=_rows(outputs.get(tensors.CONTEXT_LOGITS)),
            kv_blocks=_kv_blocks(outputs),
            engine_seconds=_engine_seconds(outputs),
            branches=() if call.branching is None else self._branches(outputs),
        )
        if not self._request.kind.in_engine:
            return answer
        return answer._replace(
            num_draft_tokens=_count(outputs, tensors.TOTAL_DRAFT_TOKENS),
            num_accepted_tokens=_count(outputs, tensors.TOTAL_ACCEPTED_DRAFT_TOKENS),
        )

    def _branches(self, outputs: dict[str, Any]) -> tuple[BranchDraft, ...]:
        missing = [f"'{tensor}'" for tensor in BRANCHES if tensor not in outputs]
        if missing:
            model = self._engine.settings.model
            raise EngineCallError(model, f"{missing[0]} is missing from its answer")
        outcomes, ids, lengths = (outputs[tensor].as_numpy() for tensor in BRANCHES)
        lengths = lengths.reshape(-1)
        ids = ids.reshape(len(lengths), -1) if len(lengths) else ids
        first_rows = (np.cumsum(lengths) - lengths).tolist()
        return tuple(
            BranchDraft(num_accepted, token, ids[i, : lengths[i]], first_rows[i])
            for i, (num_accepted, token) in enumerate(outcomes.reshape(-1, 2).tolist())
        )

    def _bias(self, call: EngineCall) -> list[Any]:
        """Return the request's bias, combined with the call's mask if the engine takes no masks.

        A call with such a mask generates one token, because a bias is the same at every position.
        """
        if call.token_masks is None or self._engine.settings.capabilities.masks_tokens:
            return self._request_bias
        width = self._engine.settings.vocab_size
        bias = masked_bias(self._sampling_bias, call.token_masks[0], width)
        return [_row(tensors.EMBEDDING_BIAS, bias)]

    def _logits(self, outputs: dict[str, Any]) -> Any:
        """Return the target's logits as [n, vocab_size], or the draft engine's tensor unchanged.

        A handle is copied, because a handle to branch logits may outlive the response.
        """
        logits = outputs.get(self._logits_output)
        if logits is not None and self._logits_output == tensors.SHARED_LOGITS_HANDLE:
            return logits.as_numpy().copy()
        return logits if self._engine.is_draft else _rows(logits)

    def _draft_inputs(self, draft: Draft) -> list[Any]:
        """Return the tensors of a draft to verify: its ids and, unless ids are compared, logits."""
        inputs = [_row(tensors.DRAFT_INPUT_IDS, draft.tokens)]
        settings = self._engine.loop
        if settings.shared_logits:
            if draft.logits is not None:
                inputs.append(pb_utils.Tensor(tensors.SHARED_LOGITS_HANDLE, draft.logits))
                inputs.append(_scalar(tensors.SHARED_LOGITS_ROW, draft.logits_row))
                inputs += self._logits_threshold
            return inputs
        drawn_from: NDArray[Any] | None = None  # [1, n, width]
        if draft.logits is not None:
            array = draft.logits.as_numpy()
            drawn_from = array.reshape(1, *array.shape[-2:])
        logits = verification_logits(draft, drawn_from, self._request, settings)
        if logits is not None:
            inputs.append(pb_utils.Tensor(tensors.DRAFT_LOGITS, logits))
            inputs += self._logits_threshold
        return inputs


def _optional_row(tensor: Any, values: NDArray[Any] | None) -> list[Any]:
    """Return a list with the tensor of an optional input, or an empty list."""
    return [] if values is None else [_row(tensor, values)]


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


def _widened(bias: NDArray[np.float32] | None, vocab_size: int) -> NDArray[np.float32] | None:
    """Return the bias, cut or padded to the engine's ``vocab_size``."""
    if bias is None:
        return None
    return (
        np.pad(bias, (0, vocab_size - len(bias))) if len(bias) < vocab_size else bias[:vocab_size]
    )


_DTYPES = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}


def _scalar(tensor: Any, value: Any) -> Any:
    return pb_utils.Tensor(tensor, np.array([[value]], _DTYPES[tensor.dtype]))


def _row(tensor: Any, values: NDArray[Any]) -> Any:
    return pb_utils.Tensor(tensor, values[np.newaxis])
