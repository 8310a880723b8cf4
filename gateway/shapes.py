"""How each endpoint writes a choice."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Protocol

from tandem.gateway.answers import Addition, AnswerState
from tandem.gateway.log_probs import LogProbRow, chat_log_probs, completion_log_probs
from tandem.gateway.objects import (
    ChatLogProbs,
    ChatMessage,
    Choice,
    CompletionLogProbs,
    FunctionCall,
    ToolCall,
)
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tools.parser import CallDelta

# Letters and digits of a call's id: Mistral's templates take no other ids back.
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9


class Shape(Protocol):
    """How an endpoint writes a choice."""

    prefix: str
    whole: str
    chunk: str

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """A complete answer."""

    def delta(self, number: int, addition: Addition) -> Choice:
        """What a chunk adds."""

    def log_probs(
        self, tokenizer: ChatTokenizer, rows: Sequence[LogProbRow]
    ) -> ChatLogProbs | CompletionLogProbs:
        """Log-probabilities of a choice."""


class ChatShape:
    """Choices of /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """A complete answer."""
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
        """What a chunk adds; the first one says who speaks."""
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

    def log_probs(self, tokenizer: ChatTokenizer, rows: Sequence[LogProbRow]) -> ChatLogProbs:
        """Log-probabilities of a choice."""
        return chat_log_probs(tokenizer, rows)


class CompletionShape:
    """Choices of /v1/completions."""

    prefix = "cmpl-"
    whole = "text_completion"
    chunk = "text_completion"

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """A complete answer."""
        return Choice(
            index=number, text=answer.text, logprobs=None, finish_reason=answer.finish_reason
        )

    def delta(self, number: int, addition: Addition) -> Choice:
        """What a chunk adds."""
        return Choice(
            index=number,
            text=addition.text,
            logprobs=None,
            finish_reason=addition.finish_reason,
        )

    def log_probs(self, tokenizer: ChatTokenizer, rows: Sequence[LogProbRow]) -> CompletionLogProbs:
        """Log-probabilities of a choice."""
        return completion_log_probs(tokenizer, rows)


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
