"""How each endpoint writes a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.gateway.answers import Addition, AnswerState
from tandem.gateway.log_probs import LogProbRow, chat_log_probs, completion_log_probs
from tandem.gateway.objects import ChatLogProbs, ChatMessage, Choice, CompletionLogProbs
from tandem.gateway.tokenizer import ChatTokenizer


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
        return Choice(
            index=number,
            message=ChatMessage(role="assistant", content=answer.text, refusal=None),
            logprobs=None,
            finish_reason=answer.finish_reason,
        )

    def delta(self, number: int, addition: Addition) -> Choice:
        """What a chunk adds; the first one says who speaks."""
        message = ChatMessage(content=addition.text)
        if addition.first:
            message = ChatMessage(role="assistant", content=addition.text)
        return Choice(
            index=number,
            delta=message,
            logprobs=None,
            finish_reason=addition.chunk.finish_reason,
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
            finish_reason=addition.chunk.finish_reason,
        )

    def log_probs(self, tokenizer: ChatTokenizer, rows: Sequence[LogProbRow]) -> CompletionLogProbs:
        """Log-probabilities of a choice."""
        return completion_log_probs(tokenizer, rows)


CHAT: Shape = ChatShape()
COMPLETION: Shape = CompletionShape()
