"""The state of one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tandem.gateway.answers.reasoning import ReasoningSplitter
from tandem.gateway.answers.tokens import AnswerToken, TokenTexts
from tandem.gateway.tools.parser import CallDelta, Piece, ToolCallParser
from tandem.gateway.triton.backend import FinishReason, ResponseChunk

NOTHING = ResponseChunk("", [], 0, 0, 0)  # before the first chunk


class AnswerDelta(NamedTuple):
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


class EncodedPrompt(NamedTuple):
    """A prompt, and the part of it that the answers repeat.

    ids: its token ids. echo: the text that the answers start with. num_repeated: number of leading
    characters of the first chunk that repeat the prompt, because the loop detokenizes prompt and
    answer together.
    """

    ids: Sequence[int]
    echo: str = ""
    num_repeated: int = 0


@dataclass
class AnswerState:
    """One answer while it grows.

    texts: assigns text to tokens, if the request asks for token details.
    splitter: separates reasoning from the answer, if the model may reason.
    parser: separates tool calls from text, if there are tools.
    """

    prompt: EncodedPrompt
    texts: TokenTexts | None = None
    splitter: ReasoningSplitter | None = None
    parser: ToolCallParser | None = None
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    begun: bool = False
    last: ResponseChunk = NOTHING

    def count(self, chunk: ResponseChunk) -> None:
        self.num_tokens += len(chunk.tokens)
        self.finish_reason = chunk.finish_reason
        self.last = chunk

    def delta(self, chunk: ResponseChunk) -> AnswerDelta:
        """Return what a chunk adds to the answer. The chunk must have been counted."""
        first, self.begun = not self.begun, True
        ended = chunk.finish_reason is not None
        if first:
            chunk = chunk._replace(text=chunk.text[self.prompt.num_repeated :])
        reasoning, content = "", chunk.text
        if self.splitter is not None:
            reasoning, content = self.splitter.feed(content, last=ended)
        pieces: list[Piece] = [content]
        if self.parser is not None:
            pieces = self.parser.feed(content, last=ended)
            if chunk.finish_reason == "stop" and self.parser.has_calls and not self.parser.in_call:
                self.finish_reason = "tool_calls"
        if first:
            pieces = [self.prompt.echo, *pieces]
        tokens = list(self.texts.complete(chunk)) if self.texts else []
        return AnswerDelta(
            chunk,
            reasoning=reasoning,
            pieces=pieces,
            finish_reason=self.finish_reason,
            first=first,
            tokens=tokens,
            rest=self.texts.rest if self.texts and ended else "",
        )

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The loop's statistics; empty until the answer ends."""
        return self.last.statistics or {}

    @property
    def num_cached_prompt_tokens(self) -> int | None:
        """Number of prompt tokens from the KV cache; None if the target doesn't report it."""
        return self.statistics.get("num_cached_prompt_tokens")

    @property
    def prediction_tokens(self) -> tuple[int, int]:
        """Accepted and rejected draft tokens from the prediction; 0 until the answer ends."""
        drafted = self.statistics.get("by_drafter", {}).get("prediction")
        if drafted is None:
            return 0, 0
        accepted = drafted["num_accepted_draft_tokens"]
        return accepted, drafted["num_draft_tokens"] - accepted

    @property
    def warnings(self) -> list[str]:
        """Parts of the guide that aren't enforced; empty until the answer ends."""
        guide = self.statistics.get("guide") or {}
        return list(guide.get("warnings", ()))

    @property
    def speculation(self) -> Mapping[str, Any]:
        """Statistics of speculation. An interrupted answer only has total token counts."""
        return self.statistics or {
            "num_spec_steps": 0,
            "num_draft_tokens": self.last.num_draft_tokens,
            "num_accepted_draft_tokens": self.last.num_accepted_tokens,
            "acceptance_histogram": [],
        }
