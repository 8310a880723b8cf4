"""Serve calls with vLLM, in vLLM's process."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tandem.engines.engine import EngineResponse
from tandem.engines.errors import LoadError, first_line
from tandem.engines.torch.lora import read_adapter, without_weights
from tandem.engines.vllm.arguments import engine_arguments, needs_each_step, sampling_arguments
from tandem.engines.vllm.call import MAX_TOKENS_AHEAD, VllmCall, text_of
from tandem.engines.vllm.hooks import check_hooks
from tandem.engines.vllm.messages import Stepped, Stop, Submit
from tandem.engines.vllm.plug_in import DRAFT_PROBS, DraftScheduler, draft_probs
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
        scheduler.allow_copies(settings.copy_len)
        self._calls: dict[str, VllmCall] = {}  # by name of the vLLM request
        self._ahead: dict[str, VllmCall] = {}  # by text: no call waits for their tokens
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
        ahead = self._ahead.pop(text_of(request), None)
        if ahead is not None:
            if ahead.take_over(message.key, request):
                return self._answer(ahead)
            self._end(ahead)
        kind = RequestOutputKind.DELTA if needs_each_step(request) else RequestOutputKind.FINAL_ONLY
        probs = draft_probs(request)
        try:
            params = vllm.SamplingParams(
                **sampling_arguments(request, self._settings.vocab_size),
                output_kind=kind,
                skip_clone=True,
                extra_args=None if probs is None else {DRAFT_PROBS: probs},
            )
            prompt: dict[str, Any] = {"prompt_token_ids": request.input_ids.tolist()}
            if request.cache_salt:
                prompt["cache_salt"] = str(request.cache_salt)
            number = request.lora_task_id
            adapter = self._adapters[number - 1] if number else None
            internal = self._engine.add_request(name, prompt, params, lora_request=adapter)
        except Exception as error:  # noqa: BLE001 ValueError, VLLMError and others
            text = f"vLLM rejected the call: {first_line(error)}"
            return [(message.key, EngineResponse(error=text, code="INVALID_ARG"))]
        call = VllmCall(message.key, name, internal, request, self._settings)
        self._calls[name] = self._scheduler.calls[internal] = call
        return []

    def _stop(self, message: Stop) -> list[tuple[int, EngineResponse]]:
        call = next((call for call in self._calls.values() if call.key == message.key), None)
        if call is None:
            return []
        call.cancelled = True
        self._end(call)
        return [(message.key, call.answer(final=True))]

    def _take(self, call: VllmCall, output: Any) -> list[tuple[int, EngineResponse]]:
        if call.add_output(output.outputs[0]) or output.finished:
            self._end(call, abort=not output.finished)
        return self._answer(call)

    def _answer(self, call: VllmCall) -> list[tuple[int, EngineResponse]]:
        """Return the call's answer, if a call waits and has all its tokens."""
        if call.key is None:  # decoding ahead
            if call.unanswered >= MAX_TOKENS_AHEAD and not call.ended:
                call.cut_off = True
                self._end(call)
            return []
        if call.complete:
            key, call.key = call.key, None
            if call.request.decode_ahead_len and call.text and not call.cut_off:
                self._keep(call)
            elif not call.ended:
                self._end(call)
            return [(key, call.answer(final=True))]
        if call.request.streaming and call.unanswered:
            return [(call.key, call.answer(final=False))]
        return []

    def _keep(self, call: VllmCall) -> None:
        """Keep a call that decodes ahead, instead of the oldest one if there are too many."""
        if other := self._ahead.pop(call.text, None):
            self._end(other)
        self._ahead[call.text] = call
        while len(self._ahead) > self._settings.max_batch_size:
            self._end(self._ahead.pop(next(iter(self._ahead))))

    def _end(self, call: VllmCall, *, abort: bool = True) -> None:
        """End the vLLM request of a call, if it hasn't ended. abort: whether vLLM still runs it."""
        if call.ended:
            return
        call.ended = True
        if abort:
            self._engine.abort_request([call.name])
        del self._calls[call.name]
        del self._scheduler.calls[call.internal]
