"""The llmapi engine: one `tensorrt_llm.LLM`, and a thread with an event loop for its answers.

It uses TensorRT-LLM 1.2.1 (tensorrt_llm/llmapi/llm.py). `generate_async` returns a result that must
be iterated on the event loop that was running during the call. `abort()` cancels it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from tandem.engines.capabilities import LLMAPI, LLMAPI_SPECULATIVE
from tandem.engines.decoding import check
from tandem.engines.engine import EngineRequest, Respond
from tandem.engines.errors import ClosingError, EngineError, LoadError, first_line
from tandem.engines.llmapi.arguments import (
    NO_END,
    applies_penalties,
    embedding_bias,
    llm_arguments,
    sampling_arguments,
)
from tandem.engines.llmapi.call import LlmapiCall
from tandem.engines.llmapi.settings import LlmApiSettings

log = logging.getLogger(__name__)


class LlmApiEngine:
    """Serves a checkpoint with TensorRT-LLM; see `engines.engine.Engine`.

    `computed_tokens` counts the tokens that went through the model since the start, to the extent
    that TensorRT-LLM reports them.
    """

    def __init__(self, settings: LlmApiSettings, package: Any) -> None:
        """Start the LLM. package: the module `tensorrt_llm`. Raises LoadError."""
        self.capabilities = LLMAPI_SPECULATIVE if settings.drafts_itself else LLMAPI
        self.computed_tokens = 0
        self._settings = settings
        self._sampling_params = package.SamplingParams
        api = package.llmapi.llm_args
        self._penalties = applies_penalties(settings, api)
        arguments = llm_arguments(settings, api)
        if settings.lora_adapters:
            # This module imports packages that are installed wherever TensorRT-LLM is.
            from tandem.engines.llmapi.lora import lora_arguments  # noqa: PLC0415

            arguments = {**lora_arguments(settings, package), **arguments}
        try:
            self._llm = package.LLM(**arguments)
        except Exception as error:
            raise LoadError(f"TensorRT-LLM failed to start: {first_line(error)}") from error
        # TensorRT-LLM reuses KV blocks only between calls with the same number.
        self._adapters = [
            package.llmapi.LoRARequest(f"lora-{number}", number, folder)
            for number, folder in enumerate(settings.lora_adapters, 1)
        ]
        self._load_adapters()
        self._calls: dict[LlmapiCall, asyncio.Task[None]] = {}
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="llmapi-engine", daemon=True
        )
        self._thread.start()

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        check(
            request,
            self._settings,
            self._settings.vocab_size,
            num_adapters=len(self._adapters),
        )
        arguments = sampling_arguments(request, penalties=self._penalties)
        bias = embedding_bias(request, self._settings.vocab_size)
        if bias is not None:
            import torch  # noqa: PLC0415 (installed wherever TensorRT-LLM is)

            arguments["embedding_bias"] = torch.from_numpy(bias)
        self._run_on_loop(
            self._start, LlmapiCall(request, respond), self._sampling_params(**arguments)
        )

    def stop(self, request_id: str) -> None:
        self._run_on_loop(self._stop, request_id)

    def close(self) -> None:
        self._closing = True
        asyncio.run_coroutine_threadsafe(self._fail_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._llm.shutdown()

    def _load_adapters(self) -> None:
        """Use each adapter once, so that startup fails if one is unusable. Raises LoadError."""
        tokens = self._settings.longest_draft + 2  # includes a step with a draft
        params = self._sampling_params(max_tokens=tokens, end_id=NO_END, detokenize=False)
        for adapter in self._adapters:
            try:
                self._llm.generate([0], params, lora_request=adapter)
            except Exception as error:
                self._llm.shutdown()
                raise LoadError(
                    f"LoRA adapter '{adapter.lora_path}': TensorRT-LLM can't apply it: "
                    f"{first_line(error)}"
                ) from error

    def _run_on_loop(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run `work` on the event loop, in order: a stop runs after the call that it stops."""
        if self._closing:
            raise ClosingError
        self._loop.call_soon_threadsafe(work, *arguments)

    def _start(self, call: LlmapiCall, sampling_params: Any) -> None:
        self._calls[call] = self._loop.create_task(self._serve(call, sampling_params))

    async def _serve(self, call: LlmapiCall, sampling_params: Any) -> None:
        number = call.request.lora_task_id
        try:
            call.result = self._llm.generate_async(
                inputs=call.request.input_ids.tolist(),
                sampling_params=sampling_params,
                lora_request=self._adapters[number - 1] if number else None,
                streaming=call.streams,
            )
            async for output in call.result:
                call.process(output)
                if call.over:
                    return
            call.fail("the engine failed: TensorRT-LLM's output ended without a final response")
        except Exception as error:
            log.exception("a call failed")
            code = error.code if isinstance(error, EngineError) else "INTERNAL"
            call.fail(f"the engine failed: {first_line(error)}", code)
        finally:
            call.abort()
            self.computed_tokens += call.computed_tokens
            self._calls.pop(call, None)

    def _stop(self, request_id: str) -> None:
        for call in [call for call in self._calls if call.request.request_id == request_id]:
            self._calls.pop(call).cancel()
            call.abort()
            call.answer(final=True)

    async def _fail_all(self) -> None:
        tasks = list(self._calls.values())
        for call, task in list(self._calls.items()):
            task.cancel()
            call.fail(str(ClosingError()), ClosingError.code)
        await asyncio.gather(*tasks, return_exceptions=True)
