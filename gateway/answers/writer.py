"""Writes OpenAI's objects: whole answers, and the chunks of streams."""

from __future__ import annotations

import secrets
import string
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from tandem.gateway.answers.log_probs import (
    LogProbRow,
    chat_log_probs,
    completion_log_probs,
    prompt_log_probs,
)
from tandem.gateway.answers.state import Addition, AnswerState
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.protocol.responses import (
    ChatLogProbs,
    ChatMessage,
    Choice,
    Completion,
    CompletionLogProbs,
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
from tandem.gateway.triton.backend import ResponseChunk

# Letters and digits of a call's id: Mistral's templates take no other ids back.
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9


class Shape(Protocol):
    """How an endpoint writes a choice.

    prompt_in_choice: what is reported about a prompt is part of a choice, not of the whole object.
    """

    prefix: str
    prompt_in_choice: bool
    whole: str
    chunk: str

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """Return a complete answer."""

    def delta(self, number: int, addition: Addition) -> Choice:
        """Return what a chunk adds."""

    def log_probs(
        self, tokenizer: ChatTokenizer, rows: Sequence[LogProbRow], *, as_ids: bool
    ) -> ChatLogProbs | CompletionLogProbs:
        """Return the log-probabilities of a choice. as_ids: name tokens by their ids."""


class ChatShape:
    """Choices of /v1/chat/completions."""

    prefix = "chatcmpl-"
    prompt_in_choice = False
    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    log_probs = staticmethod(chat_log_probs)

    def choice(self, number: int, answer: AnswerState) -> Choice:
        message = ChatMessage(role="assistant", content=answer.text, refusal=None)
        if reasoning := answer.reasoning:
            message.content = answer.text or None
            message.reasoning = message.reasoning_content = reasoning
        if calls := answer.calls:
            message.content = answer.text or None
            message.tool_calls = [
                ToolCall(id=_call_id(), type="function", function=_function(call)) for call in calls
            ]
        return Choice(
            index=number, message=message, logprobs=None, finish_reason=answer.finish_reason
        )

    def delta(self, number: int, addition: Addition) -> Choice:
        message = ChatMessage(content=addition.text)
        if addition.first:
            message = ChatMessage(role="assistant", content=addition.text)
        if addition.reasoning:
            message.content = addition.text or None
            message.reasoning = message.reasoning_content = addition.reasoning
        if addition.calls:
            message.tool_calls = [_new_of_call(call) for call in addition.calls]
        return Choice(
            index=number, delta=message, logprobs=None, finish_reason=addition.finish_reason
        )


class CompletionShape:
    """Choices of /v1/completions."""

    prefix = "cmpl-"
    prompt_in_choice = True
    whole = "text_completion"
    chunk = "text_completion"
    log_probs = staticmethod(completion_log_probs)

    def choice(self, number: int, answer: AnswerState) -> Choice:
        return Choice(
            index=number, text=answer.text, logprobs=None, finish_reason=answer.finish_reason
        )

    def delta(self, number: int, addition: Addition) -> Choice:
        return Choice(
            index=number,
            text=addition.text,
            logprobs=None,
            finish_reason=addition.finish_reason,
        )


def _new_of_call(call: CallDelta) -> ToolCall:
    """What a chunk tells of a call; the first one has its id and name."""
    if call.name is None:
        return ToolCall(index=call.index, function=FunctionCall(arguments=call.arguments))
    return ToolCall(index=call.index, id=_call_id(), type="function", function=_function(call))


def _function(call: CallDelta) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)


def _call_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))


CHAT: Shape = ChatShape()
COMPLETION: Shape = CompletionShape()


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
            choice = self._shape.choice(number, answer)
            if answer.origins is not None:
                choice.token_details = answer.details
            self._tell(choice, answer.rows, answer.tokens)
            made.choices.append(choice)
            self._tell_of_prompt(made, number, answer.additions[0].chunk)
        return made

    def chunk(self, number: int, addition: Addition) -> Completion:
        choice, chunk = self._shape.delta(number, addition), addition.chunk
        self._tell(choice, addition.rows, chunk.tokens)
        if addition.details is not None:
            choice.token_details = addition.details
            choice.speculation = SpeculationSoFar(
                num_rounds=chunk.num_rounds,
                num_draft_tokens=chunk.num_draft_tokens,
                num_accepted_draft_tokens=chunk.num_accepted_tokens,
            )
        made = self._object(self._shape.chunk, choices=[choice])
        if addition.first:
            self._tell_of_prompt(made, number, chunk)
        if self._body.streams_usage:
            made.usage = self.usage if self._body.streams_usage_always else None
        return made

    def end(self) -> Completion:
        """Return the last chunk of a stream: no choices, but the statistics of all of them."""
        return self._object(self._shape.chunk, choices=[], usage=self.usage, metrics=self.metrics)

    def _tell(self, choice: Choice, rows: list[LogProbRow] | None, tokens: Sequence[int]) -> None:
        if rows is not None:
            as_ids = self._body.return_tokens_as_token_ids
            choice.logprobs = self._shape.log_probs(self._tokenizer, rows, as_ids=as_ids)
        if self._body.return_token_ids:
            choice.token_ids = list(tokens)

    def _tell_of_prompt(self, made: Completion, number: int, chunk: ResponseChunk) -> None:
        """Add the ids and log-probabilities of a prompt, if they are wanted.

        made: its last choice is that of the answer with this number. chunk: the answer's first.
        """
        told = made.choices[-1] if self._shape.prompt_in_choice else made
        prompt = self._answers[number].prompt
        if self._body.return_token_ids:
            told.prompt_token_ids = list(prompt)
        if (wanted := self._body.prompt_logprobs) is not None:
            told.prompt_logprobs = prompt_log_probs(self._tokenizer, prompt, chunk, wanted)

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
