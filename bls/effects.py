"""What the loop asks of its driver.

The loop does no I/O: it yields one of these and is sent the answer.

=============  ==========================================================  ==================
effect         meaning                                                     the driver sends
=============  ==========================================================  ==================
EngineCall     call `draft` or `target`                                    EngineAnswer
TextCall       turn ids into text                                          str
Chunk          hand tokens (and text) to whoever waits for them            None
=============  ==========================================================  ==================

The driver throws EngineError into the loop where an engine failed, and Cancelled where nobody
waits for the answer any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bls.request import TokenIds

EngineRole: TypeAlias = Literal["draft", "target"]
FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]

NO_TOKENS: TokenIds = np.empty(0, np.int32)


@dataclass(frozen=True)
class Draft:
    """Draft tokens of a round and, in logits mode, what they were drawn from."""

    tokens: TokenIds = field(default_factory=lambda: NO_TOKENS)  # [num_draft_tokens]
    logits: Any = (
        None  # the draft engine's tensor [1, num_draft_tokens, vocab_size], handed on untouched
    )

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine; what a request keeps the same in every call is not repeated here."""

    engine: EngineRole
    context: TokenIds  # [context_length], prompt and answer so far
    max_new_tokens: int
    seed: int
    draft: Draft = Draft()
    end_id: int | None = None
    ban_end_ids: bool = False
    wants_logits: bool = False


class KvBlocks(NamedTuple):
    """What a call did to the engine's KV cache, in blocks."""

    reused: int  # computed by an earlier call
    total: int = 0  # reused and new


@dataclass(frozen=True)
class EngineAnswer:
    """The new tokens that an engine call brought, and how long it took."""

    tokens: TokenIds  # [n]
    seconds: float = 0.0
    log_probs: NDArray[np.float32] | None = None  # [n]
    logits: Any = None  # [1, n, vocab_size], as the engine sent it
    context_logits: Any = None
    kv_blocks: KvBlocks | None = None


class TextCall(NamedTuple):
    """Ask for the complete text that ``window[context_length:]`` adds to what precedes it.

    With ``context_length`` None: the whole window's text, unfinished characters included.
    """

    window: TokenIds  # [n]
    context_length: int | None


class Chunk(NamedTuple):
    """Tokens that became final, and their text where a round's text was asked for."""

    tokens: TokenIds  # [n]
    text: str
    finish_reason: FinishReason | None  # None: more will come


Effect: TypeAlias = EngineCall | TextCall | Chunk
