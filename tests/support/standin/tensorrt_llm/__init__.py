"""A stand-in for TensorRT-LLM 1.2.1 with the same names and argument checks, and a toy model.

The model repeats cycles of seven ids: the next id depends only on the last one and on the LoRA
adapter. It speculates as configured, so responses contain several tokens and statistics. The names
come from these files of
TensorRT-LLM: llmapi/llm_args.py, llmapi/llm.py, sampling_params.py and executor/result.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from tensorrt_llm.llmapi import llm_args

__version__ = "1.2.1"
STEP_SECONDS = 0.002
go_on = threading.Event()  # if cleared, calls pause after each step
go_on.set()
CYCLE = 7
# The arguments that Tandem or a test passes.
LLM_ARGUMENTS = {
    "model",
    "skip_tokenizer_init",
    "trust_remote_code",
    "tensor_parallel_size",
    "dtype",
    "lora_config",
    "kv_cache_config",
    "enable_chunked_prefill",
    "guided_decoding_backend",
    "speculative_config",
    "max_batch_size",
    "max_seq_len",
    "max_num_tokens",
    "cuda_graph_config",
}


@dataclass(kw_only=True)
class SamplingParams:
    """The sampling fields of version 1.2.1 that Tandem or a test sets."""

    end_id: int | None = None
    max_tokens: int = 32
    bad_token_ids: list[int] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_p: float | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")

    @property
    def greedy(self) -> bool:
        """Return whether these parameters select greedy decoding."""
        asked = (self.temperature, self.top_k, self.top_p)
        return asked == (None, None, None) or self.temperature == 0 or self.top_k == 1


@dataclass
class CompletionOutput:
    """The single completion of a result, which grows with each response."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None


class RequestOutput:
    """The result of `generate_async`: an asynchronous iterator that yields itself."""

    def __init__(self, prompt: list[int], params: SamplingParams, *, streaming: bool) -> None:
        self.prompt_token_ids = prompt
        self.sampling_params = params
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.cached_tokens = 0
        self.decoding_iter = 0
        self.drafted = self.accepted = self.reused_blocks = 0
        self.adapter = 0
        self._streaming = streaming
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[Any] = asyncio.Queue()
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    def respond(self, tokens: list[int], reason: str | Exception | None) -> None:
        """Send a response from any thread, even if the caller's event loop has closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._responses.put_nowait, (tokens, reason))

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        tokens, reason = await self._responses.get()
        if isinstance(reason, Exception):
            raise reason
        completion = self.outputs[0]
        completion.token_ids.extend(tokens)
        if self.sampling_params.logprobs is not None:
            completion.logprobs += [{t: SimpleNamespace(logprob=-0.5, rank=1)} for t in tokens]
        if self.sampling_params.return_perf_metrics:
            completion.request_perf_metrics = self._figures()
        self.finished = reason is not None
        completion.finish_reason = reason
        return self

    def _figures(self) -> Any:
        start = timedelta(seconds=100)
        return SimpleNamespace(
            speculative_decoding=SimpleNamespace(
                total_draft_tokens=self.drafted, total_accepted_draft_tokens=self.accepted
            ),
            kv_cache_metrics=SimpleNamespace(
                num_reused_blocks=self.reused_blocks, num_new_allocated_blocks=3
            ),
            timing_metrics=SimpleNamespace(
                arrival_time=start, first_scheduled_time=start + timedelta(milliseconds=5)
            ),
        )


class LLM:
    """The LLM class with its documented constructor and methods. Unknown arguments fail."""

    made: ClassVar[list[LLM]] = []

    def __init__(self, model: str, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in LLM_ARGUMENTS:
                raise ValueError(f"TorchLlmArgs: {name}: Extra inputs are not permitted")
        config = json.loads((Path(model) / "config.json").read_text())
        self.arguments = {"model": model, **kwargs}
        self.results: list[RequestOutput] = []
        self.is_shut = False
        self._vocab_size = config["vocab_size"]
        speculation = kwargs.get("speculative_config")
        self._speculation = speculation
        self._cached: set[tuple[int, ...]] = set()  # (number of the adapter, *prompt)
        self._global_generator = random.Random(0)  # the seeds of requests are ignored
        LLM.made.append(self)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        *,  # the real method also accepts these by position
        lora_request: Any = None,
        streaming: bool = False,
    ) -> RequestOutput:
        if self.is_shut:
            raise RuntimeError("LLM is shutting down")
        if not (isinstance(inputs, list) and all(type(token) is int for token in inputs)):
            raise TypeError(f"The inputs must be type str or list of int, but got {type(inputs)}")
        assert isinstance(sampling_params, SamplingParams)
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        result = RequestOutput(inputs, sampling_params, streaming=streaming)
        if lora_request is not None:
            self._check_adapter(lora_request)
            result.adapter = lora_request.lora_int_id
        key = (result.adapter, *inputs)
        result.reused_blocks = 2 if key in self._cached else 0
        self._cached.add(key)
        self.results.append(result)
        threading.Thread(target=self._run, args=(result,), daemon=True).start()
        return result

    def generate(
        self, inputs: list[int], sampling_params: SamplingParams, *, lora_request: Any = None
    ) -> RequestOutput:
        """Generate one output and wait for it."""

        async def whole() -> RequestOutput:
            result = self.generate_async(inputs, sampling_params, lora_request=lora_request)
            async for output in result:
                assert output is result
            return result

        return asyncio.run(whole())

    def _check_adapter(self, lora_request: Any) -> None:
        rank = json.loads((Path(lora_request.lora_path) / "adapter_config.json").read_text())["r"]
        most = self.arguments["lora_config"].max_lora_rank
        if rank > most:
            raise RuntimeError(f"Invalid low_rank ({rank}). low_rank must be smaller than {most}")

    def shutdown(self) -> None:
        self.is_shut = True

    def _run(self, result: RequestOutput) -> None:
        """Decode step by step. Send one response per step if streaming, otherwise a single one."""
        params, row = result.sampling_params, list(result.prompt_token_ids)
        start, unsent, reason = len(row), [], None
        while reason is None:
            time.sleep(STEP_SECONDS)
            new = self._step(row, result, params.max_tokens - (len(row) - start))
            reason = self._reason(new, len(row) - start, params)
            row += new
            unsent += new
            if result.aborted():
                reason = "cancelled"
            if reason or result._streaming:
                result.respond(unsent, reason)
                unsent = []
            result.decoding_iter += 1
            go_on.wait()

    def _step(self, row: list[int], result: RequestOutput, room: int) -> list[int]:
        """Return the accepted draft tokens, and the token after them."""
        params = result.sampling_params
        truth: list[int] = []
        for _ in range(room):
            said = len(row) + len(truth) - len(result.prompt_token_ids)
            token = self._next((row + truth)[-1], params, result.adapter)
            while self._banned(token, said, params):
                token = self._next(token, params, result.adapter)
            truth.append(token)
        drafts = self._drafts(row)[: room - 1]
        right = 0
        while right < len(drafts) and drafts[right] == truth[right]:
            right += 1
        result.drafted += len(drafts)
        result.accepted += right
        return truth[: right + 1]

    @staticmethod
    def _banned(token: int, said: int, params: SamplingParams) -> bool:
        if params.embedding_bias is not None and params.embedding_bias[token] == float("-inf"):
            return True
        return token == params.end_id and said < (params.min_tokens or 0)

    def _next(self, token: int, params: SamplingParams, adapter: int = 0) -> int:
        first = token - token % CYCLE
        size = min(CYCLE, self._vocab_size - first)
        step = 1 + adapter if params.greedy else self._global_generator.randint(1, size)
        return first + (token - first + step) % size

    def _drafts(self, row: list[int]) -> list[int]:
        config = self._speculation
        if not isinstance(
            config, llm_args.NGramDecodingConfig | llm_args.DraftTargetDecodingConfig
        ):
            return []
        if isinstance(config, llm_args.DraftTargetDecodingConfig):  # wrong every third token
            drafts = [row[-1]]
            while len(drafts) <= config.max_draft_len:
                drafts.append(self._next(drafts[-1], SamplingParams()))
            return [0 if token % 3 == 0 else token for token in drafts[1:]]
        for size in range(config.max_matching_ngram_size, 0, -1):
            for at in range(len(row) - size):
                if row[at : at + size] == row[-size:]:
                    return row[at + size : at + size + config.max_draft_len]
        return []

    @staticmethod
    def _reason(new: list[int], before: int, params: SamplingParams) -> str | None:
        """Return the finish reason, or None. Cuts `new` after an id that ends the answer."""
        for i, token in enumerate(new):
            if token in {params.end_id, *(params.stop_token_ids or ())}:
                del new[i + 1 :]
                return "stop"
        return "length" if before + len(new) >= params.max_tokens else None
