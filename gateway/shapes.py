"""How each endpoint writes a choice."""

from __future__ import annotations

from typing import Protocol

from tandem.gateway.answers import AnswerState
from tandem.gateway.schema import ChatMessage, Choice
from tandem.gateway.triton import ResponseChunk


class Shape(Protocol):
    """How an endpoint writes a choice."""

    prefix: str
    whole: str
    chunk: str

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """A complete answer."""

    def delta(self, number: int, chunk: ResponseChunk, *, first: bool) -> Choice:
        """What a chunk adds. first: nothing of this answer was sent yet."""


class ChatShape:
    """Choices of /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, number: int, answer: AnswerState) -> Choice:
        """A complete answer."""
        return Choice(
            index=number,
            message=ChatMessage(role="assistant", content=answer.text, refusal=None),
            logprobs=None,
            finish_reason=answer.finish_reason,
        )

    def delta(self, number: int, chunk: ResponseChunk, *, first: bool) -> Choice:
        """What a chunk adds; the first one says who speaks."""
        message = ChatMessage(content=chunk.text)
        if first:
            message = ChatMessage(role="assistant", content=chunk.text)
        return Choice(index=number, delta=message, logprobs=None, finish_reason=chunk.finish_reason)


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

    def delta(self, number: int, chunk: ResponseChunk, *, first: bool) -> Choice:  # noqa: ARG002
        """What a chunk adds."""
        return Choice(
            index=number, text=chunk.text, logprobs=None, finish_reason=chunk.finish_reason
        )


CHAT: Shape = ChatShape()
COMPLETION: Shape = CompletionShape()
