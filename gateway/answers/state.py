"""What came of one answer so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandem.gateway.answers.log_probs import LogProbReader, LogProbRow
from tandem.gateway.answers.reasoning import ReasoningSplitter, Split
from tandem.gateway.answers.tokens import TokenOrigins
from tandem.gateway.protocol.responses import FinishReason, TokenDetail
from tandem.gateway.tools.parser import CallDelta, Parsed, ToolCallParser
from tandem.gateway.triton.backend import ResponseChunk


@dataclass(frozen=True)
class Addition:
    """What a chunk adds to an answer.

    first: nothing of this answer was told yet. details, rows: None where nobody wants them; rows
    are of log-probabilities.
    """

    chunk: ResponseChunk
    text: str
    reasoning: str
    calls: list[CallDelta]
    finish_reason: FinishReason | None
    first: bool
    details: list[TokenDetail] | None
    rows: list[LogProbRow] | None


class Echo(NamedTuple):
    """The prompt that an answer begins with.

    text: as the client sent it. num_received: characters of it, as the loop shows it, that the
    first chunk begins with: the loop decodes prompt and answer together.
    """

    text: str = ""
    num_received: int = 0


NO_ECHO = Echo()


@dataclass
class AnswerState:
    """One answer while it grows. What it holds is kept for a whole answer only.

    prompt: its token ids. echo: what it begins with. origins, log_probs: read what is told of
    tokens, where it is wanted. splitter: tells thoughts from the answer, where the model may think.
    parser: tells calls from text, where there are tools; one_call: of them, the first alone is
    told; only_calls: all the answer is calls, so what of it is none is the markup of one that was
    cut.
    """

    prompt: Sequence[int]
    echo: Echo = NO_ECHO
    origins: TokenOrigins | None = None
    log_probs: LogProbReader | None = None
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
    additions: list[Addition] = field(default_factory=list)

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
        parsed = self._parsed(chunk, split.content)
        return Addition(
            chunk,
            text=(self.echo.text if first else "") + parsed.content,
            reasoning=split.reasoning,
            calls=parsed.calls,
            finish_reason=self.finish_reason,
            first=first,
            details=None if self.origins is None else self.origins.details(chunk),
            rows=None if self.log_probs is None else self.log_probs.rows(chunk),
        )

    def _split(self, chunk: ResponseChunk) -> Split:
        if self.splitter is None:
            return Split(content=chunk.text)
        reasoning, content = self.splitter.feed(chunk.text)
        if chunk.finish_reason is not None:
            rest = self.splitter.end()
            reasoning, content = reasoning + rest.reasoning, content + rest.content
        return Split(reasoning, content)

    def _parsed(self, chunk: ResponseChunk, text: str) -> Parsed:
        if self.parser is None:
            return Parsed(text)
        parsed = self.parser.feed(text)
        if chunk.finish_reason is not None:
            parsed.content += self.parser.end().content
            ended = chunk.finish_reason == "stop" and not self.parser.in_call
            if self.parser.has_calls and ended:
                self.finish_reason = "tool_calls"
        if self.only_calls:
            parsed.content = ""
        if self.one_call:
            parsed.calls = [call for call in parsed.calls if call.index == 0]
        return parsed

    @property
    def num_cached_prompt_tokens(self) -> int | None:
        """Tokens of the prompt that were in the KV cache; None where, or until, nobody says."""
        return None if self.statistics is None else self.statistics["num_cached_prompt_tokens"]

    @property
    def warnings(self) -> list[str]:
        """What of the guide isn't enforced; empty until the answer has ended."""
        guide = (self.statistics or {}).get("guide") or {}
        return list(guide.get("warnings", ()))

    @property
    def speculation(self) -> Mapping[str, Any]:
        """What speculation did; of an answer that was cut short, in no more than these totals."""
        if self.statistics is not None:
            return self.statistics
        return {
            "num_spec_steps": 0,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_tokens,
            "acceptance_histogram": [],
        }

    def whole(self) -> Addition:
        """Return all that was kept as one addition."""
        kept = self.additions
        calls: list[CallDelta] = []
        for delta in (call for addition in kept for call in addition.calls):
            if delta.index == len(calls):
                calls.append(CallDelta(delta.index, delta.name))
            calls[delta.index].arguments += delta.arguments
        tokens = [token for addition in kept for token in addition.chunk.tokens]
        details = [detail for addition in kept for detail in addition.details or ()]
        rows = [row for addition in kept for row in addition.rows or ()]
        return Addition(
            kept[0].chunk._replace(tokens=tokens),
            text="".join(addition.text for addition in kept),
            reasoning="".join(addition.reasoning for addition in kept),
            calls=calls,
            finish_reason=self.finish_reason,
            first=True,
            details=None if self.origins is None else details,
            rows=None if self.log_probs is None else rows,
        )
