"""One answer to a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tandem.gateway.answers.reasoning import ReasoningSplitter
from tandem.gateway.answers.tokens import AnswerToken, TokenTexts
from tandem.gateway.protocol.requests import ChatRequest, GenerationRequest
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tool_calls import CallDelta, Piece, ToolCallParser
from tandem.gateway.triton.backend import FinishReason, ResponseChunk

NOTHING = ResponseChunk("", [], 0, 0, 0)  # before the first chunk


class EncodedPrompt(NamedTuple):
    """A prompt, and the part of it that the answers repeat.

    ids: its token ids. echo: the text that the answers start with. num_repeated: number of leading
    characters of the first chunk that repeat the prompt, because the loop detokenizes prompt and
    answer together.
    """

    ids: Sequence[int]
    echo: str = ""
    num_repeated: int = 0


class ParsedAnswer:
    """An answer, which grows by chunks. A non-streamed answer has one chunk.

    ids: its tokens so far. finish_reason: None until the answer ends. chunk: the last chunk,
    without text that repeats the prompt.

    The other attributes are what the last chunk adds. first: whether it is the first one. pieces:
    text and parts of calls, in order. tokens: the tokens whose text is complete, if the request
    asks for token details; `texts` has the text that belongs to no token.

    counts_cached: whether to report how many of the prompt's tokens came from the KV cache.
    """

    def __init__(
        self,
        body: GenerationRequest,
        prompt: EncodedPrompt,
        tokenizer: ChatTokenizer,
        *,
        counts_cached: bool = True,
    ) -> None:
        self.prompt = prompt
        self._counts_cached = counts_cached
        self.ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.chunk = NOTHING
        self.first = True
        self.reasoning = ""
        self.pieces: list[Piece] = []
        self.tokens: list[AnswerToken] = []
        has_details = body.return_token_details or body.num_alternatives is not None
        self.texts = TokenTexts(len(prompt.echo)) if has_details else None
        self._splitter: ReasoningSplitter | None = None
        self._parser: ToolCallParser | None = None
        if isinstance(body, ChatRequest) and tokenizer.reasons:
            begun = tokenizer.has_begun_to_reason(prompt.ids)
            self._splitter = ReasoningSplitter(begun=begun)
        if isinstance(body, ChatRequest) and body.tools and tokenizer.tool_calls:
            self._parser = ToolCallParser(
                tokenizer.tool_calls,
                [tool.function.name for tool in body.tools],
                one_call=body.one_call,
                only_calls=body.must_call,
            )

    def add(self, chunk: ResponseChunk) -> None:
        self.first = self.chunk is NOTHING
        if self.first:
            chunk = chunk._replace(text=chunk.text[self.prompt.num_repeated :])
        ended = chunk.finish_reason is not None
        self.chunk = chunk
        self.ids += chunk.tokens
        self.finish_reason = chunk.finish_reason
        self.reasoning, content = "", chunk.text
        if self._splitter is not None:
            self.reasoning, content = self._splitter.feed(content, last=ended)
        self.pieces = [content]
        if (parser := self._parser) is not None:
            self.pieces = parser.feed(content, last=ended)
            if chunk.finish_reason == "stop" and parser.has_calls and not parser.in_call:
                self.finish_reason = "tool_calls"
        if self.first:
            self.pieces = [self.prompt.echo, *self.pieces]
        if self.texts is not None:
            self.tokens = list(self.texts.complete(chunk))

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def calls(self) -> list[CallDelta]:
        return [piece for piece in self.pieces if isinstance(piece, CallDelta)]

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The loop's statistics; empty until the answer ends."""
        return self.chunk.statistics or {}

    @property
    def num_cached_prompt_tokens(self) -> int | None:
        """Number of prompt tokens from the KV cache; None if it isn't reported."""
        return self.statistics.get("num_cached_prompt_tokens") if self._counts_cached else None

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
            "num_draft_tokens": self.chunk.num_draft_tokens,
            "num_accepted_draft_tokens": self.chunk.num_accepted_tokens,
            "acceptance_histogram": [],
        }
