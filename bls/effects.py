"""What the loop asks its driver to do.

The loop does no I/O: it yields one of these effects and receives the result.

=============  ==========================================================  ==================
effect         meaning                                                     the driver sends
=============  ==========================================================  ==================
EngineCall     call `draft` or `target`                                    EngineAnswer
StartAhead     carry out steps while the next call blocks                  None
AwaitAhead     wait for what those steps return                            it, or None if late
TextCall       turn ids into text                                          DecodedText
Chunk          hand tokens (and text) to the client                        None
NextChunk      wait for tokens that another driver's steps made final      Chunk
=============  ==========================================================  ==================

If an engine fails, the driver throws EngineCallError into the loop. An error in steps ahead is
thrown at AwaitAhead. A loop whose client has left gets no more results.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import CONTROL, DrafterName
from tandem.bls.metrics.request_statistics import Totals
from tandem.bls.request import TokenIds
from tandem.bls.text.token_details import Counts, TokenDetails, TopLogProbs

EngineRole: TypeAlias = Literal["draft", "target"]
FinishReason: TypeAlias = Literal["stop", "length"]

NO_TOKENS: TokenIds = np.empty(0, np.int32)


class DraftPlan(NamedTuple):
    """Length of the next draft.

    stop_probability: stop once the joint probability of the draft's tokens is below this.
    plain_tokens: number of tokens that the target decodes alone if ``num_tokens`` is 0.
    """

    num_tokens: int
    stop_probability: float = 0.0
    wants_log_probs: bool = False
    plain_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens of a round, their drafter and, in logits mode, the logits they were drawn from.

    plain_tokens: for an empty draft, the number of tokens that the target may decode before it is
    worth drafting again.
    """

    tokens: TokenIds = field(default_factory=lambda: NO_TOKENS)  # [num_draft_tokens]
    logits: Any = None  # the draft engine's tensor: [1, num_draft_tokens, vocab_size], or a handle
    logits_row: int = 0  # of the first draft token, in the logits of the handle
    drafter: DrafterName = CONTROL.name
    plain_tokens: int = 1
    num_matching: int = 0  # of a copy: length of the n-gram that matched
    plan: DraftPlan | None = None  # what a draft model was asked for, and its answer
    answer: EngineAnswer | None = None
    num_branches: int = 0  # that were drafted ahead for this round
    drafted_ahead: bool = False  # this draft is one of them
    seconds_saved: float = 0.0  # by that

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


class Branching(NamedTuple):
    """Number of branches after each outcome of a verification, and their length.

    An outcome is (accepted length j, next token). Its branch continues the context, the first j
    draft tokens and that token.
    """

    counts: tuple[int, ...]  # [num_draft_tokens + 1], by j
    lengths: tuple[int, ...]  # [num_draft_tokens + 1], tokens per branch


class BranchDraft(NamedTuple):
    """Draft tokens that may follow one outcome of a verification."""

    num_accepted: int
    next_token: int
    tokens: TokenIds  # [n], n >= 0
    logits_row: int = 0  # of the first token, in the logits of all branches of the call


class EngineCall(NamedTuple):
    """One call of an engine, without the values that are the same in every call of a request."""

    engine: EngineRole
    context: TokenIds  # [context_length], prompt and answer so far
    max_new_tokens: int
    seed: int
    draft: Draft = NO_DRAFT
    branching: Branching | None = None  # draft on after `draft` instead of verifying it
    end_id: int | None = None  # ends the call, and is not in its answer
    stop_ids: tuple[int, ...] = ()  # end it too, and are in its answer
    ban_end_ids: bool = False
    wants_logits: bool = False
    unread_logits: Any = None  # of `draft`: handle to its own logits that will not be read
    wants_log_probs: bool = False
    whole: bool = False  # it may take as long as the request
    stop_probability: float = 0.0  # see DraftPlan
    # Of the target, [num_draft_tokens + 1, words]: the tokens that are allowed at each position. An
    # engine that takes no masks is called for one token, and gets its mask as a bias.
    token_masks: NDArray[np.int32] | None = None


class KvBlocks(NamedTuple):
    """Changes that a call made to the engine's KV cache, in blocks."""

    reused: int  # computed by an earlier call
    total: int = 0  # reused and new; 0 if the call did not ask


class PromptLogProbs(NamedTuple):
    """Log-probabilities of the prompt's tokens. The first token's row is zeros."""

    values: NDArray[np.float32]  # [num_input_tokens]
    top: TopLogProbs | None = None


class EngineAnswer(NamedTuple):
    """The new tokens of an engine call, and how long it took.

    seconds: duration of the whole call. engine_seconds: duration by the engine's own clock, or 0 if
    it reports none.
    """

    tokens: TokenIds  # [n]
    seconds: float = 0.0
    engine_seconds: float = 0.0
    num_draft_tokens: int = 0  # of an engine that drafts by itself
    num_accepted_tokens: int = 0
    log_probs: NDArray[np.float32] | None = None  # [n]
    top: TopLogProbs | None = None
    prompt_log_probs: PromptLogProbs | None = None
    # The target's [n, vocab_size]; the draft's as it sent them, [1, n, vocab_size], or a handle
    logits: Any = None
    context_logits: NDArray[np.float32] | None = None  # [context_length, vocab_size]
    kv_blocks: KvBlocks | None = None
    branches: tuple[BranchDraft, ...] = ()


class StartAhead(NamedTuple):
    """Run these steps while the next EngineCall blocks. AwaitAhead returns their result.

    The steps yield engine calls only. Earlier steps that were not awaited are abandoned, and their
    call is stopped. If no thread is free, the steps never start and have no result.
    """

    steps: Generator[EngineCall, EngineAnswer, Any]


class AwaitAhead(NamedTuple):
    """Wait for the result of the last StartAhead's steps; None if they are late.

    timeout: seconds to wait.
    """

    timeout: float


class StepSeconds(NamedTuple):
    """Duration of a round, or of a call without drafts.

    whole: from the end of one emit to the end of the next. target: the target's part of it.
    """

    whole: float
    target: float


class TextCall(NamedTuple):
    """Request the complete text that ``window[context_length:]`` adds to the tokens before it.

    If ``context_length`` is None: the whole window's text, including unfinished characters.
    """

    window: TokenIds  # [n]
    context_length: int | None
    wants_lengths: bool = False


class DecodedText(NamedTuple):
    """Result of a TextCall, and how many of its characters each id completes."""

    text: str
    lengths: Counts | None = None  # [n - context_length], if the call wants them


class Chunk(NamedTuple):
    """Tokens that became final, with their text if the round needed it."""

    tokens: TokenIds  # [n]
    text: str
    finish_reason: FinishReason | None  # None: more will come
    totals: Totals  # with these tokens
    details: TokenDetails


class NextChunk(NamedTuple):
    """Wait for tokens that another driver's steps have made final."""


Effect: TypeAlias = EngineCall | StartAhead | AwaitAhead | TextCall | Chunk | NextChunk
