"""The llmapi engine: one `tensorrt_llm.LLM`, and a thread with an event loop for its answers.

It uses TensorRT-LLM 1.2.1 (tensorrt_llm/llmapi/llm.py). `generate_async` returns a result that must
be iterated on the event loop that was running during the call. `abort()` cancels it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

from tandem.contract.errors import ErrorCode
from tandem.engines.constraints import cut
from tandem.engines.decoding import check
from tandem.engines.engine import CallUsage, EngineRequest, EngineResponse, Floats, Respond, deliver
from tandem.engines.errors import CancelledError, ClosingError, EngineError, LoadError, first_line
from tandem.engines.kinds import LLMAPI, LLMAPI_SPECULATIVE
from tandem.engines.llmapi.arguments import (
    NO_END,
    applies_penalties,
    embedding_bias,
    llm_arguments,
    sampling_arguments,
    stops_by_itself,
)
from tandem.engines.llmapi.settings import LlmApiSettings

GIVEN_UP = ("cancelled", "timeout")
log = logging.getLogger(__name__)


class LlmapiCall:
    """A call's tokens and the answers sent so far.

    It reads TensorRT-LLM's `RequestOutput` (tensorrt_llm/executor/result.py, 1.2.1), which has one
    completion that grows from response to response.

    Attributes:
        result: the return value of `generate_async`; None before that call.
        over: whether the final answer has been sent.

    """

    def __init__(self, request: EngineRequest, respond: Respond) -> None:
        self.request = request
        self.result: Any = None
        self.over = False
        self.usage = CallUsage()
        self._respond = respond
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._read = 0  # number of tokens read from the completion
        self._answered = 0
        self._aborted = False

    @property
    def streams(self) -> bool:
        """Whether TensorRT-LLM must stream, for a streaming client or our search for stop words."""
        return self.request.streaming or not stops_by_itself(self.request)

    @property
    def computed_tokens(self) -> int:
        """Number of tokens that went through the model.

        These are the uncached context, the answer and the rejected draft tokens.
        """
        usage = self.usage
        wrong = usage.draft_tokens - usage.accepted_tokens
        cached = getattr(self.result, "cached_tokens", 0) or 0
        return len(self.request.input_ids) - cached + self._read + wrong

    def process(self, output: Any) -> None:
        """Process a response and answer. Raises CancelledError if TensorRT-LLM aborted the call."""
        completion = output.outputs[0]
        if output.finished and completion.finish_reason in GIVEN_UP:
            raise CancelledError(f"TensorRT-LLM ended the request: {completion.finish_reason}")
        tokens = list(completion.token_ids[self._read :])
        kept, ended, surplus = cut(self.request, self._tokens, tokens)
        if self.request.return_log_probs:
            self._log_probs += _log_probs(completion.logprobs, self._read, kept)
        self._read += len(tokens)
        self._tokens += kept
        self.usage = self._usage(completion, surplus)
        if ended or output.finished:
            self.answer(final=True)
        elif self.request.streaming and kept:
            self.answer(final=False)

    def answer(self, *, final: bool) -> None:
        start, self._answered = self._answered, len(self._tokens)
        log_probs: Floats | None = None
        if self.request.return_log_probs:
            log_probs = np.array(self._log_probs[start:], np.float32)
        self._send(
            EngineResponse(
                tokens=tuple(self._tokens[start:]),
                final=final,
                log_probs=log_probs,
                usage=self.usage,
            )
        )

    def fail(self, message: str, code: ErrorCode = "INTERNAL") -> None:
        self._send(EngineResponse(error=message, code=code, usage=self.usage))

    def abort(self) -> None:
        if self.result is not None and not (self._aborted or self.result.finished):
            self._aborted = True
            self.result.abort()

    def _send(self, answer: EngineResponse) -> None:
        """Send an answer, or record that the client has disconnected."""
        self.over = answer.final
        if not deliver(self._respond, answer):
            self.over = True

    def _usage(self, completion: Any, surplus: int) -> CallUsage:
        """Return the response's usage. A token's time is the time when it arrived.

        surplus: number of the response's tokens after the one that ended the answer.
        """
        now = time.time_ns()
        first = self.usage.first_token_time_ns or now
        metrics = getattr(completion, "request_perf_metrics", None)
        if metrics is None:
            return CallUsage(first_token_time_ns=first, last_token_time_ns=now)
        drafts, blocks = metrics.speculative_decoding, metrics.kv_cache_metrics
        timing = metrics.timing_metrics
        waited = timing.first_scheduled_time - timing.arrival_time
        return CallUsage(
            reused_blocks=blocks.num_reused_blocks,
            new_blocks=blocks.num_new_allocated_blocks,
            draft_tokens=drafts.total_draft_tokens,
            # Exclude accepted tokens after the one that ended the answer. TensorRT-LLM's own count
            # may include tokens that it dropped after finding the end itself.
            accepted_tokens=max(
                0, min(drafts.total_accepted_draft_tokens, self._read - 1) - surplus
            ),
            first_scheduled_time_ns=self.request.arrival_time_ns
            + waited // timedelta(microseconds=1) * 1000,
            first_token_time_ns=first,
            last_token_time_ns=now,
        )


def _log_probs(rows: Any, start: int, tokens: list[int]) -> list[float]:
    """Return the tokens' log-probabilities. rows: one dict {token id: Logprob} per token.

    Raises EngineError if one is missing.
    """
    found: list[float] = []
    for row, token in zip((rows or ())[start:], tokens, strict=False):
        if token in row:
            found.append(row[token].logprob)
    if len(found) != len(tokens):
        raise EngineError("TensorRT-LLM didn't return a log-probability for every token")
    return found


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
