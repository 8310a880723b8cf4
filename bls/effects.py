"""What the loop asks of its driver.

The loop does no I/O: it yields one of these and is sent the answer.

=============  ==========================================================  ==================
effect         meaning                                                     the driver sends
=============  ==========================================================  ==================
EngineCall     call `draft` or `target`                                    EngineAnswer
StartAhead         carry steps out while my next call blocks                   None
AwaitAhead         what those steps returned, or None if it is not there yet   their result, None
TextCall       turn ids into text                                          DecodedText
Chunk          hand tokens (and text) to whoever waits for them            None
NextChunk      wait for tokens that another driver's steps made final      Chunk
=============  ==========================================================  ==================

The driver throws EngineCallError into the loop where an engine failed. What failed beside a call is
thrown where the loop settles it. A loop that nobody waits for any more is sent nothing.
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
    """How long a draft is to be.

    stop_probability: end it where the draft model itself finds it less probable that all is right.
    plain_tokens: where ``num_tokens`` is 0, for how many tokens the target goes on alone.
    """

    num_tokens: int
    stop_probability: float = 0.0
    wants_log_probs: bool = False
    plain_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens of a round, who proposed them and, in logits mode, what they were drawn from.

    plain_tokens: where there are none, how many tokens the target may decode before it is worth
    asking again.
    """

    tokens: TokenIds = field(default_factory=lambda: NO_TOKENS)  # [num_draft_tokens]
    logits: Any = None  # the draft engine's tensor: [1, num_draft_tokens, vocab_size], or a handle
    logits_row: int = 0  # behind the handle: the first draft token's
    drafter: DrafterName = CONTROL.name
    plain_tokens: int = 1
    num_matching: int = 0  # of a copy: the tokens that led to it
    plan: DraftPlan | None = None  # what was asked of a draft model, and its answer
    answer: EngineAnswer | None = None
    waited: bool = False  # its round, for what was drafted ahead of it
    num_branches: int = 0  # drafted ahead for this round; it is one of them if
    drafted_ahead: bool = False
    seconds_saved: float = 0.0  # since it was

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


class Branching(NamedTuple):
    """How many branches to draft behind each outcome of a verification, and how long.

    An outcome is (accepted length j, next token). A branch is drafted behind the context, the first
    j draft tokens and that token.
    """

    counts: tuple[int, ...]  # [num_draft_tokens + 1], by j
    lengths: tuple[int, ...]  # [num_draft_tokens + 1], tokens of each


class BranchDraft(NamedTuple):
    """What may follow one outcome of a verification."""

    num_accepted: int
    next_token: int
    tokens: TokenIds  # [n], n >= 0
    logits_row: int = 0  # in the logits of all branches of the call: the first token's


class EngineCall(NamedTuple):
    """One call of an engine; what a request keeps the same in every call is not repeated here."""

    engine: EngineRole
    context: TokenIds  # [context_length], prompt and answer so far
    max_new_tokens: int
    seed: int
    draft: Draft = NO_DRAFT
    branching: Branching | None = None  # of `draft`: draft on behind it instead of verifying it
    end_id: int | None = None  # ends the call, and is not in its answer
    stop_ids: tuple[int, ...] = ()  # end it too, and are in it
    ban_end_ids: bool = False
    wants_logits: bool = False
    unread_logits: Any = None  # of `draft`: a handle to logits of its own that nobody will read
    wants_log_probs: bool = False
    whole: bool = False  # it may take as long as the request
    stop_probability: float = 0.0  # stop where it is less probable that all so far are right
    # Of the target, [num_draft_tokens + 1, words]: which tokens may come at each place. An engine
    # that takes no masks is called for one token, and gets its mask as a bias.
    token_masks: NDArray[np.int32] | None = None


class KvBlocks(NamedTuple):
    """What a call did to the engine's KV cache, in blocks."""

    reused: int  # computed by an earlier call
    total: int = 0  # reused and new; 0 where nobody asked


class PromptLogProbs(NamedTuple):
    """How likely the prompt's tokens were; nothing precedes the first one, whose row is zeros."""

    values: NDArray[np.float32]  # [num_input_tokens]
    top: TopLogProbs | None = None


class EngineAnswer(NamedTuple):
    """The new tokens that an engine call brought, and how long it took.

    seconds: as the caller waited. engine_seconds: as the engine worked, by its own clock; the rest
    was spent on the way. 0 where the engine does not say.
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
    """Carry these steps out while the next EngineCall blocks; `AwaitAhead` asks for their result.

    They yield engine calls only. What was not settled before is given up, and its call stopped. If
    nobody is free to carry them out, nothing happens, and there will be no result.
    """

    steps: Generator[EngineCall, EngineAnswer, Any]


class AwaitAhead(NamedTuple):
    """Take what the steps beside the last call returned; None where they have not ended in time.

    timeout: how many seconds to wait for it.
    """

    timeout: float


class StepSeconds(NamedTuple):
    """What a round, or a call without drafts, took.

    whole: from the end of one emit to the end of the next. target: the target's part of it.
    """

    whole: float
    target: float


class TextCall(NamedTuple):
    """Ask for the complete text that ``window[context_length:]`` adds to what precedes it.

    With ``context_length`` None: the whole window's text, unfinished characters included.
    """

    window: TokenIds  # [n]
    context_length: int | None
    wants_lengths: bool = False


class DecodedText(NamedTuple):
    """The text that was asked for, and how many characters of it each id completes."""

    text: str
    lengths: Counts | None = None  # [n - context_length], where they were wanted


class Chunk(NamedTuple):
    """Tokens that became final, and their text where the round had to know it."""

    tokens: TokenIds  # [n]
    text: str
    finish_reason: FinishReason | None  # None: more will come
    totals: Totals  # with these tokens
    details: TokenDetails


class NextChunk(NamedTuple):
    """Wait for tokens that another driver's steps made final."""


Effect: TypeAlias = EngineCall | StartAhead | AwaitAhead | TextCall | Chunk | NextChunk
