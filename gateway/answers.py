"""What came of one answer so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.gateway.schema import FinishReason, TokenDetail
from tandem.gateway.triton import ResponseChunk


@dataclass
class AnswerState:
    """One answer while it grows. Its text is kept for a whole answer only."""

    num_prompt_tokens: int
    text: str = ""
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    statistics: Mapping[str, Any] | None = None
    details: list[TokenDetail] = field(default_factory=list)

    def add(self, chunk: ResponseChunk) -> None:
        """Take in what follows."""
        self.num_tokens += len(chunk.tokens)
        self.finish_reason = chunk.finish_reason
        self.statistics = chunk.statistics
