"""Serve calls with vLLM, in vLLM's process."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tandem.engines.ending import cut
from tandem.engines.errors import LoadError, first_line
from tandem.engines.request import CallUsage, EngineRequest, EngineResponse, LikeliestTokens
from tandem.engines.torch.lora import read_adapter, without_weights
from tandem.engines.vllm.arguments import engine_arguments, needs_each_step, sampling_arguments
from tandem.engines.vllm.hooks import check_hooks
from tandem.engines.vllm.messages import Stepped, Stop, Submit
from tandem.engines.vllm.plug_in import DRAFT_PROBS, DraftScheduler, ScheduledCall, draft_probs
from tandem.engines.vllm.settings import VllmSettings


class VllmWorker:
    """One `LLMEngine` and its calls."""

    version: str = vllm.__version__

    def __init__(self, settings: VllmSettings) -> None:
        check_hooks(vllm.__version__, Scheduler, GPUModelRunner)
        self._settings = settings
        arguments = engine_arguments(settings)
        if settings.lora_adapters and not torch.cuda.is_available():
            # vLLM's CPU kernels give a call without an adapter the last slot, so keep it empty.
            arguments["max_loras"] += 1
        self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        scheduler: DraftScheduler = self._engine.engine_core.engine_core.scheduler
        self._scheduler = scheduler
        self._calls: dict[str, VllmCall] = {}
        # vLLM reuses KV blocks only between calls with the same adapter name.
        self._adapters = [
            LoRARequest(f"lora-{number}", number, folder)
            for number, folder in enumerate(settings.lora_adapters, 1)
        ]
        self._load_adapters()

    def serve(self, connection: Connection) -> None:
        """Receive calls and run steps until a message is None.

        Raises EOFError if the engine's process has died.
        """
        while True:
            answers: list[tuple[int, EngineResponse]] = []
            while connection.poll(None if not (self._calls or answers) else 0):
                message = connection.recv()
                if message is None:
                    return
                if isinstance(message, Submit):
                    answers += self._submit(message)
                else:
                    answers += self._stop(message)
            if self._calls:
                for output in self._engine.step():
                    call = self._calls.get(output.request_id)
                    if call is not None:
                        answers += self._take(call, output)
            if answers:
                connection.send(Stepped(self._scheduler.steps, answers))

    def _load_adapters(self) -> None:
        """Load all adapters, so that startup fails if one is unusable. Raises LoadError.

        vLLM ignores layers that the model doesn't have, and accepts matrices that are too small.
        """
        if not self._adapters:
            return
        model = without_weights(
            self._engine.model_config.hf_config,
            trust_remote_code=self._settings.trust_remote_code,
        )
        for adapter in self._adapters:
            read_adapter(Path(adapter.lora_path), model)
            try:
                self._engine.add_lora(adapter)
            except Exception as error:
                raise LoadError(
                    f"LoRA adapter '{adapter.lora_path}': vLLM can't load it: {first_line(error)}"
                ) from error

    def _submit(self, message: Submit) -> list[tuple[int, EngineResponse]]:
        request, name = message.request, str(message.key)
        kind = RequestOutputKind.DELTA if needs_each_step(request) else RequestOutputKind.FINAL_ONLY
        probs = draft_probs(request)
        try:
            params = vllm.SamplingParams(
                **sampling_arguments(request, self._settings.vocab_size),
                output_kind=kind,
                skip_clone=True,
                extra_args=None if probs is None else {DRAFT_PROBS: probs},
            )
            prompt = {"prompt_token_ids": request.input_ids.tolist()}
            number = request.lora_task_id
            adapter = self._adapters[number - 1] if number else None
            internal = self._engine.add_request(name, prompt, params, lora_request=adapter)
        except Exception as error:  # noqa: BLE001 ValueError, VLLMError and others
            text = f"vLLM rejected the call: {first_line(error)}"
            return [(message.key, EngineResponse(error=text, code="INVALID_ARG"))]
        scheduled = ScheduledCall(request, self._settings.vocab_size)
        self._scheduler.calls[internal] = scheduled
        self._calls[name] = VllmCall(message.key, internal, scheduled, self._settings)
        return []

    def _stop(self, message: Stop) -> list[tuple[int, EngineResponse]]:
        call = self._calls.get(str(message.key))
        if call is None:
            return []
        self._end(call)
        return [(call.key, call.answer(final=True))]

    def _take(self, call: VllmCall, output: Any) -> list[tuple[int, EngineResponse]]:
        ended = call.take(output.outputs[0])
        if ended or output.finished:
            self._end(call, abort=not output.finished)
            return [(call.key, call.answer(final=True))]
        if call.request.streaming and call.unanswered:
            return [(call.key, call.answer(final=False))]
        return []

    def _end(self, call: VllmCall, *, abort: bool = True) -> None:
        if abort:
            self._engine.abort_request([str(call.key)])
        del self._calls[str(call.key)]
        del self._scheduler.calls[call.internal]


class VllmCall:
    """A call's tokens and the answers sent so far."""

    def __init__(
        self, key: int, internal: str, scheduled: ScheduledCall, settings: VllmSettings
    ) -> None:
        self.key = key
        self.internal = internal
        self.request: EngineRequest = scheduled.request
        self._scheduled = scheduled
        self._settings = settings
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._top: list[list[tuple[int, float]]] = []
        self._surplus = 0  # tokens after the one that ended the answer, and an end id
        self._answered = 0
        self._first_token_time_ns = 0
        self._last_token_time_ns = 0

    @property
    def unanswered(self) -> bool:
        return len(self._tokens) > self._answered

    def take(self, completion: Any) -> bool:
        """Add new tokens. Return whether the answer ends here."""
        self._last_token_time_ns = time.time_ns()
        self._first_token_time_ns = self._first_token_time_ns or self._last_token_time_ns
        new = list(completion.token_ids)
        kept, ended, surplus = cut(self.request, self._tokens, new)
        stop = self.request.draft_stop_probability
        wants_log_probs = self.request.return_log_probs or stop is not None
        for place, token in enumerate(kept if wants_log_probs else ()):
            row = completion.logprobs[place]
            self._log_probs.append(row[token].logprob)
            best = sorted(row.items(), key=lambda item: -item[1].logprob)
            count = self.request.num_top_log_probs
            self._top.append([(token, entry.logprob) for token, entry in best[:count]])
            if stop is not None and np.exp(sum(self._log_probs)) < stop:
                kept, ended, surplus = kept[: place + 1], True, len(new) - place - 1
                break
        self._tokens += kept
        self._surplus = surplus
        return ended

    def answer(self, *, final: bool) -> EngineResponse:
        request, start = self.request, self._answered
        self._answered = len(self._tokens)
        wants_log_probs = request.return_log_probs
        top = None
        if wants_log_probs and request.num_top_log_probs:
            rows = np.array(self._top[start:], np.float32).reshape(-1, request.num_top_log_probs, 2)
            top = LikeliestTokens(rows[..., 0].astype(np.int32), rows[..., 1])
        return EngineResponse(
            tokens=tuple(self._tokens[start:]),
            final=final,
            first=start == 0,
            log_probs=np.array(self._log_probs[start:], np.float32) if wants_log_probs else None,
            cum_log_prob=sum(self._log_probs),
            top_log_probs=top,
            num_output_tokens=len(self._tokens),
            usage=self._usage(),
        )

    def _usage(self) -> CallUsage:
        scheduled, block = self._scheduled, self._settings.kv_block_tokens
        reused = scheduled.cached_tokens // block
        whole = -(-(len(self.request.input_ids) + len(self._tokens)) // block)
        return CallUsage(
            reused_blocks=reused,
            new_blocks=whole - reused,
            computed_tokens=scheduled.computed_tokens,
            draft_tokens=scheduled.draft_tokens,
            accepted_tokens=max(0, scheduled.accepted_tokens - self._surplus),
            first_scheduled_time_ns=scheduled.first_scheduled_time_ns,
            first_token_time_ns=self._first_token_time_ns,
            last_token_time_ns=self._last_token_time_ns,
        )
