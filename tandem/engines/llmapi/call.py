"""State of one running call."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy as np

from tandem.contract.errors import ErrorCode
from tandem.engines.constraints import cut
from tandem.engines.engine import CallUsage, EngineRequest, EngineResponse, Floats, Respond, deliver
from tandem.engines.errors import CancelledError, EngineError
from tandem.engines.llmapi.arguments import stops_by_itself

GIVEN_UP = ("cancelled", "timeout")


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
