"""Converts engine calls into Triton requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.bls.guidance import masked_bias
from tandem.bls.lossless import draft_gets_bans, draft_sampling, verification_logits
from tandem.bls.ports import Draft, EngineCall
from tandem.bls.request import Request
from tandem.bls.triton.engine_calls.clients import EngineClient
from tandem.bls.triton.engine_calls.result_reader import BRANCHES, REQUIRED
from tandem.bls.triton.engine_calls.triton_tensors import optional_row, row, scalar
from tandem.bls.triton.engine_calls.word_lists import drop_unknown, join_tables, one_token_words
from tandem.contract import engine as tensors


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
        self._lora = [] if number is None else [scalar(tensors.LORA_TASK_ID, number)]
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
            *self._lora,
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
        if call.unread_logits is not None:
            inputs.append(pb_utils.Tensor(tensors.UNREAD_LOGITS_HANDLE, call.unread_logits))
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
                inputs.append(scalar(tensors.SHARED_LOGITS_ROW, draft.logits_row))
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
