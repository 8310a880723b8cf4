"""Writes OpenAI's objects: whole answers, and the chunks of streams."""

from __future__ import annotations

import secrets
import string
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

from tandem.gateway.answers.log_probs import (
    chat_log_probs,
    completion_log_probs,
    prompt_log_probs,
)
from tandem.gateway.answers.state import Addition, AnswerState
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.protocol.responses import (
    ChatMessage,
    Choice,
    Completion,
    FunctionCall,
    PromptTokensDetails,
    RequestMetrics,
    SpeculationSoFar,
    SpeculativeDecoding,
    ToolCall,
    Usage,
)
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tools.parser import CallDelta

# Letters and digits of a call's id: Mistral's templates take no other ids back.
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9


class ChatShape:
    """Choices of /v1/chat/completions.

    prompt_in_choice: what is reported about a prompt is part of a choice, not of the whole object.
    """

    prefix = "chatcmpl-"
    prompt_in_choice = False
    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    log_probs = staticmethod(chat_log_probs)

    def choice(self, number: int, addition: Addition, *, whole: bool) -> Choice:
        """Return what a chunk adds, or a complete answer; the first chunk has the role."""
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


class CompletionShape:
    """Choices of /v1/completions."""

    prefix = "cmpl-"
    prompt_in_choice = True
    whole = "text_completion"
    chunk = "text_completion"
    log_probs = staticmethod(completion_log_probs)

    def choice(self, number: int, addition: Addition, *, whole: bool) -> Choice:  # noqa: ARG002
        return Choice(
            index=number, text=addition.text, logprobs=None, finish_reason=addition.finish_reason
        )


def _tool_call(call: CallDelta, *, whole: bool) -> ToolCall:
    """Return a call, or what a chunk adds to it; the first chunk has its id and name."""
    made = ToolCall(function=FunctionCall(arguments=call.arguments))
    if not whole:
        made.index = call.index
    if call.name is not None:
        made.id, made.type, made.function.name = _call_id(), "function", call.name
    return made


def _call_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))


Shape: TypeAlias = ChatShape | CompletionShape
CHAT, COMPLETION = ChatShape(), CompletionShape()


class Writer:
    """Writes the objects of one request: they share an id, a moment and a model.

    answers: of the request, all choices of the first prompt before those of the next.
    """

    def __init__(
        self,
        shape: Shape,
        body: GenerationRequest,
        answers: Sequence[AnswerState],
        tokenizer: ChatTokenizer,
        *,
        model: str,
        fingerprint: str,
    ) -> None:
        self._shape = shape
        self._body = body
        self._answers = answers
        self._tokenizer = tokenizer
        self._model = model
        self._fingerprint = fingerprint
        self._id = shape.prefix + uuid.uuid4().hex
        self._created = int(time.time())

    @property
    def usage(self) -> Usage:
        """Tokens so far; those of a prompt are counted once, however many choices it has."""
        firsts = self._answers[:: self._body.n]
        prompts = sum(len(answer.prompt) for answer in firsts)
        new = sum(answer.num_tokens for answer in self._answers)
        usage = Usage(prompt_tokens=prompts, completion_tokens=new, total_tokens=prompts + new)
        cached = [answer.num_cached_prompt_tokens for answer in firsts]
        known = [count for count in cached if count is not None]
        if len(known) == len(cached):
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=sum(known))
        return usage

    @property
    def metrics(self) -> RequestMetrics:
        counted = [answer.speculation for answer in self._answers]
        return RequestMetrics(speculative_decoding=speculative_decoding(counted))

    def whole(self) -> Completion:
        made = self._object(self._shape.whole, choices=[], usage=self.usage, metrics=self.metrics)
        for number, answer in enumerate(self._answers):
            self._add(made, number, answer.whole(), whole=True)
        return made

    def chunk(self, number: int, addition: Addition) -> Completion:
        made = self._object(self._shape.chunk, choices=[])
        self._add(made, number, addition, whole=False)
        if self._body.streams_usage:
            made.usage = self.usage if self._body.streams_usage_always else None
        return made

    def end(self) -> Completion:
        """Return the last chunk of a stream: no choices, but the statistics of all of them."""
        return self._object(self._shape.chunk, choices=[], usage=self.usage, metrics=self.metrics)

    def _add(self, made: Completion, number: int, addition: Addition, *, whole: bool) -> None:
        """Add a choice, with what the request wants to know of its tokens and of its prompt."""
        body, chunk = self._body, addition.chunk
        choice = self._shape.choice(number, addition, whole=whole)
        made.choices.append(choice)
        if addition.details is not None:
            choice.token_details = addition.details
            if not whole:
                choice.speculation = SpeculationSoFar(
                    num_rounds=chunk.num_rounds,
                    num_draft_tokens=chunk.num_draft_tokens,
                    num_accepted_draft_tokens=chunk.num_accepted_tokens,
                )
        if addition.rows is not None:
            as_ids = body.return_tokens_as_token_ids
            choice.logprobs = self._shape.log_probs(self._tokenizer, addition.rows, as_ids=as_ids)
        if body.return_token_ids:
            choice.token_ids = list(chunk.tokens)
        if warnings := self._answers[number].warnings:
            made.warnings = warnings
        if not addition.first:
            return
        told = choice if self._shape.prompt_in_choice else made
        prompt = self._answers[number].prompt
        if body.return_token_ids:
            told.prompt_token_ids = list(prompt)
        if body.prompt_logprobs is not None:
            told.prompt_logprobs = prompt_log_probs(
                self._tokenizer, prompt, chunk, body.prompt_logprobs
            )

    def _object(self, name: str, **fields: Any) -> Completion:
        return Completion(
            id=self._id,
            object=name,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            **fields,
        )


def speculative_decoding(statistics: Iterable[Mapping[str, Any]]) -> SpeculativeDecoding:
    given = list(statistics)
    steps, drafted, accepted = (
        sum(one[name] for one in given)
        for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    histograms = [one["acceptance_histogram"] for one in given]
    return SpeculativeDecoding(
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=1 + accepted / steps if steps else 1.0,
        acceptance_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
    )
