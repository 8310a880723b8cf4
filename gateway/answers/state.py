"""The state of one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tandem.gateway.answers.reasoning import ReasoningSplitter, Split
from tandem.gateway.answers.tokens import AnswerToken, TokenTexts
from tandem.gateway.protocol.responses import FinishReason
from tandem.gateway.tools.parser import CallDelta, Piece, ToolCallParser
from tandem.gateway.triton.backend import ResponseChunk


class Addition(NamedTuple):
    """The part of an answer that one chunk adds. A non-streamed answer has one chunk.

    pieces: text and parts of calls, in order. first: whether the chunk is the first one. tokens:
    the tokens whose text is complete, if the request asks for token details. rest: text at the end
    of the answer that belongs to no token.
    """

    chunk: ResponseChunk
    reasoning: str
    pieces: list[Piece]
    finish_reason: FinishReason | None
    first: bool
    tokens: list[AnswerToken]
    rest: str

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def calls(self) -> list[CallDelta]:
        return [piece for piece in self.pieces if isinstance(piece, CallDelta)]


class Echo(NamedTuple):
    """The prompt at the start of an answer.

    text: the prompt as the client sent it. num_received: number of leading characters of the first
    chunk that repeat the prompt, because the loop detokenizes prompt and answer together.
    """

    text: str = ""
    num_received: int = 0


NO_ECHO = Echo()


@dataclass
class AnswerState:
    """One answer while it grows.

    prompt: its token ids.
    echo: the prompt that the answer starts with, if requested.
    texts: assigns text to tokens, if the request asks for token details.
    splitter: separates reasoning from the answer, if the model may reason.
    parser: separates tool calls from text, if there are tools.
    one_call: whether to keep only the first call.
    only_calls: whether the answer must consist of calls. Other text is then markup of an incomplete
        call.
    """

    prompt: Sequence[int]
    echo: Echo = NO_ECHO
    texts: TokenTexts | None = None
    splitter: ReasoningSplitter | None = None
    parser: ToolCallParser | None = None
    one_call: bool = False
    only_calls: bool = False
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    statistics: Mapping[str, Any] | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    begun: bool = False

    def add(self, chunk: ResponseChunk) -> None:
        self.num_tokens += len(chunk.tokens)
        self.finish_reason = chunk.finish_reason
        self.statistics = chunk.statistics
        self.num_draft_tokens = chunk.num_draft_tokens
        self.num_accepted_tokens = chunk.num_accepted_tokens

    def addition(self, chunk: ResponseChunk) -> Addition:
        first, self.begun = not self.begun, True
        if first:
            chunk = chunk._replace(text=chunk.text[self.echo.num_received :])
        split = self._split(chunk)
        pieces = self._parsed(chunk, split.content)
        tokens = list(self.texts.completed(chunk)) if self.texts else []
        return Addition(
            chunk,
            split.reasoning,
            [self.echo.text, *pieces] if first else pieces,
            finish_reason=self.finish_reason,
            first=first,
            tokens=tokens,
            rest=self.texts.rest if self.texts and chunk.finish_reason else "",
        )

    def _split(self, chunk: ResponseChunk) -> Split:
        if self.splitter is None:
            return Split(content=chunk.text)
        reasoning, content = self.splitter.feed(chunk.text)
        if chunk.finish_reason is not None:
            rest = self.splitter.end()
            reasoning, content = reasoning + rest.reasoning, content + rest.content
        return Split(reasoning, content)

    def _parsed(self, chunk: ResponseChunk, text: str) -> list[Piece]:
        if self.parser is None:
            return [text]
        pieces = self.parser.feed(text)
        if chunk.finish_reason is not None:
            pieces.append(self.parser.end())
            ended = chunk.finish_reason == "stop" and not self.parser.in_call
            if self.parser.has_calls and ended:
                self.finish_reason = "tool_calls"
        if self.only_calls:
            pieces = [piece for piece in pieces if isinstance(piece, CallDelta)]
        if self.one_call:
            pieces = [piece for piece in pieces if isinstance(piece, str) or piece.index == 0]
        return pieces

    @property
    def num_cached_prompt_tokens(self) -> int | None:
        """Number of prompt tokens from the KV cache; None if the target doesn't report it."""
        return None if self.statistics is None else self.statistics["num_cached_prompt_tokens"]

    @property
    def prediction_tokens(self) -> tuple[int, int]:
        """Accepted and rejected draft tokens from the prediction; 0 until the answer ends."""
        drafted = (self.statistics or {}).get("by_drafter", {}).get("prediction")
        if drafted is None:
            return 0, 0
        accepted = drafted["num_accepted_draft_tokens"]
        return accepted, drafted["num_draft_tokens"] - accepted

    @property
    def warnings(self) -> list[str]:
        """Parts of the guide that aren't enforced; empty until the answer ends."""
        guide = (self.statistics or {}).get("guide") or {}
        return list(guide.get("warnings", ()))

    @property
    def speculation(self) -> Mapping[str, Any]:
        """Statistics of speculation. An interrupted answer only has total token counts."""
        if self.statistics is not None:
            return self.statistics
        return {
            "num_spec_steps": 0,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_tokens,
            "acceptance_histogram": [],
        }
