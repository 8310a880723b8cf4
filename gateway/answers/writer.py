"""Write answers as OpenAI's objects and stream events."""

from __future__ import annotations

import json
import secrets
import string
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from tandem.contract.entry import KINDS
from tandem.gateway.answers.log_probs import (
    LogProbRow,
    chat_log_probs,
    completion_log_probs,
    log_prob_rows,
    prompt_log_probs,
)
from tandem.gateway.answers.state import Addition, AnswerState
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.requests import GenerationRequest, StreamOptions
from tandem.gateway.protocol.responses import (
    ChatLogProbs,
    ChatMessage,
    Choice,
    Completion,
    CompletionLogProbs,
    CompletionTokensDetails,
    FunctionCall,
    PromptTokensDetails,
    RequestMetrics,
    SpeculationSoFar,
    SpeculativeDecoding,
    TokenDetail,
    ToolCall,
    Usage,
)
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tools.parser import CallDelta

# Mistral's templates accept only call ids of 9 letters and digits.
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
DONE = b"data: [DONE]\n\n"


class Writer(ABC):
    """Writes the response to one request: one object, or the events of a stream.

    An API with other objects overrides `whole`, `chunk`, `end` and `failure`. answers: all choices
    of the first prompt, then all choices of the second, and so on.
    """

    prefix: ClassVar[str]  # prefix of the response's id
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    prompt_in_choice: ClassVar[bool]  # whether choices contain prompt details

    def __init__(
        self,
        body: GenerationRequest,
        answers: Sequence[AnswerState],
        tokenizer: ChatTokenizer,
        *,
        model: str,
        fingerprint: str,
    ) -> None:
        self._body = body
        self._stream_options = body.stream_options or StreamOptions()
        self._answers = answers
        self._tokenizer = tokenizer
        self._fields: dict[str, Any] = {
            "id": self.prefix + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    @property
    def usage(self) -> Usage:
        """Token counts so far. A prompt with several choices counts once."""
        firsts = self._answers[:: self._body.n]
        prompts = sum(len(answer.prompt) for answer in firsts)
        new = sum(answer.num_tokens for answer in self._answers)
        usage = Usage(prompt_tokens=prompts, completion_tokens=new, total_tokens=prompts + new)
        cached = [answer.num_cached_prompt_tokens for answer in firsts]
        known = [count for count in cached if count is not None]
        if len(known) == len(cached):
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=sum(known))
        if self._body.prediction is not None:
            counts = [answer.prediction_tokens for answer in self._answers]
            accepted, rejected = (sum(column) for column in zip(*counts, strict=True))
            usage.completion_tokens_details = CompletionTokensDetails(
                accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected
            )
        return usage

    @property
    def speculation(self) -> SpeculativeDecoding:
        statistics = [answer.speculation for answer in self._answers]
        steps, drafted, accepted = (
            sum(one[name] for one in statistics)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        )
        histograms = [one["acceptance_histogram"] for one in statistics]
        return SpeculativeDecoding(
            num_spec_steps=steps,
            num_draft_tokens=drafted,
            num_accepted_draft_tokens=accepted,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            mean_acceptance_length=1 + accepted / steps if steps else 1.0,
            acceptance_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
        )

    def whole(self, additions: Sequence[Addition]) -> bytes:
        """Return the complete answers. additions: one per answer."""
        made = self._with_statistics(self.whole_object)
        for number, addition in enumerate(additions):
            self._add(made, number, addition, whole=True)
        return made.json_bytes()

    def chunk(self, number: int, addition: Addition) -> bytes:
        """Return the events for an addition to answer `number`."""
        made = Completion(object=self.chunk_object, choices=[], **self._fields)
        self._add(made, number, addition, whole=False)
        if self._stream_options.include_usage:
            made.usage = self.usage if self._stream_options.continuous_usage_stats else None
        return event(made.json_bytes())

    def end(self) -> bytes:
        """Return the final events of a stream."""
        if not self._stream_options.include_usage:
            return DONE
        return event(self._with_statistics(self.chunk_object).json_bytes()) + DONE

    def failure(self, error: ApiError) -> bytes:
        """Return the final events of a stream that ends with an error."""
        return event(json.dumps(error.body).encode()) + DONE

    @abstractmethod
    def choice(self, number: int, addition: Addition, *, whole: bool) -> Choice:
        """Return answer `number`, or the part that an addition adds to it."""

    @abstractmethod
    def log_probs(
        self, rows: Sequence[LogProbRow], *, as_ids: bool
    ) -> ChatLogProbs | CompletionLogProbs:
        """Return rows in this API's format. as_ids: name tokens by id instead of by text."""

    def _with_statistics(self, name: str) -> Completion:
        metrics = RequestMetrics(speculative_decoding=self.speculation)
        return Completion(
            object=name, choices=[], usage=self.usage, metrics=metrics, **self._fields
        )

    def _add(self, made: Completion, number: int, addition: Addition, *, whole: bool) -> None:
        """Add a choice, with the token and prompt details that the request asks for."""
        body, chunk, answer = self._body, addition.chunk, self._answers[number]
        choice = self.choice(number, addition, whole=whole)
        made.choices.append(choice)
        if body.return_token_details:
            choice.token_details = _token_details(addition)
            if not whole:
                choice.speculation = SpeculationSoFar(
                    num_rounds=chunk.num_rounds,
                    num_draft_tokens=chunk.num_draft_tokens,
                    num_accepted_draft_tokens=chunk.num_accepted_tokens,
                )
        if body.num_alternatives is not None:
            rows = log_prob_rows(self._tokenizer, body, answer, addition)
            choice.logprobs = self.log_probs(rows, as_ids=body.return_tokens_as_token_ids)
        if body.return_token_ids:
            choice.token_ids = list(chunk.tokens)
        if warnings := answer.warnings:
            made.warnings = warnings
        if not addition.first:
            return
        place = choice if self.prompt_in_choice else made
        if body.return_token_ids:
            place.prompt_token_ids = list(answer.prompt)
        if body.prompt_logprobs is not None:
            place.prompt_logprobs = prompt_log_probs(
                self._tokenizer, answer.prompt, chunk, body.prompt_logprobs
            )


class ChatWriter(Writer):
    """Writes the answers of /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_in_choice = False

    def choice(self, number: int, addition: Addition, *, whole: bool) -> Choice:
        message = ChatMessage(content=addition.text)
        if addition.first:
            message.role = "assistant"
        if whole:
            message.refusal = None
        if addition.reasoning or (whole and addition.calls):
            message.content = addition.text or None
        if addition.reasoning:
            message.reasoning = message.reasoning_content = addition.reasoning
        if addition.calls:
            message.tool_calls = [_tool_call(call, whole=whole) for call in addition.calls]
        choice = Choice(index=number, logprobs=None, finish_reason=addition.finish_reason)
        if whole:
            choice.message = message
        else:
            choice.delta = message
        return choice

    def log_probs(self, rows: Sequence[LogProbRow], *, as_ids: bool) -> ChatLogProbs:
        return chat_log_probs(self._tokenizer, rows, as_ids=as_ids)


class CompletionWriter(Writer):
    """Writes the answers of /v1/completions."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"
    prompt_in_choice = True

    def choice(self, number: int, addition: Addition, *, whole: bool) -> Choice:  # noqa: ARG002
        return Choice(
            index=number, text=addition.text, logprobs=None, finish_reason=addition.finish_reason
        )

    def log_probs(self, rows: Sequence[LogProbRow], *, as_ids: bool) -> CompletionLogProbs:
        return completion_log_probs(self._tokenizer, rows, as_ids=as_ids)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _token_details(addition: Addition) -> list[TokenDetail]:
    details = [
        TokenDetail(id=token.id, text=token.text, round=token.round, kind=KINDS[token.kind])
        for token in addition.tokens
        if token.round is not None and token.kind is not None
    ]
    if details:
        details[-1].text += addition.rest  # an incomplete character at the end of the answer
    return details


def _tool_call(call: CallDelta, *, whole: bool) -> ToolCall:
    """Return a call or a chunk of one. Only the first chunk has the call's id and name."""
    made = ToolCall(function=FunctionCall(arguments=call.arguments))
    if not whole:
        made.index = call.index
    if call.name is not None:
        made.id, made.type, made.function.name = new_call_id(), "function", call.name
    return made


def new_call_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))
