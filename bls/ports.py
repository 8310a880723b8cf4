"""What the loop asks of engines, the tokenizer and the client, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import BASELINE, DrafterName
from tandem.bls.request import TokenIds
from tandem.bls.statistics import Totals
from tandem.contract.entry import KINDS, Kind

Counts: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
KindIndices: TypeAlias = NDArray[np.uint8]

NO_COUNTS: Counts = np.empty(0, np.int32)
_INDEX: dict[Kind, int] = {kind: index for index, kind in enumerate(KINDS)}


class TopLogProbs(NamedTuple):
    """The k most likely tokens at each of n positions, most likely first."""

    ids: NDArray[np.int32]  # [n, k]
    values: NDArray[np.float32]  # [n, k]


class TokenDetails(NamedTuple):
    """Details of n tokens.

    rounds: [n], number of the token's round in the answer, from 1. Each token without a draft is
        its own round. Forced tokens of a guide belong to the round before them, or to round 0.
    kinds: [n], indices into ``contract.entry.KINDS``.
    rejected_ids: [n], the draft token that a correction replaces; otherwise -1.
    text_lengths: [n], number of characters that the token completes.
    log_probs: [n]. top_ids, top_log_probs: [n, k], see TopLogProbs.

    text_lengths, log_probs, top_ids and top_log_probs are None if not requested.
    """

    rounds: Counts
    kinds: KindIndices
    rejected_ids: Counts
    text_lengths: Counts | None = None
    log_probs: Floats | None = None
    top_ids: Counts | None = None
    top_log_probs: Floats | None = None

    def first(self, count: int) -> TokenDetails:
        columns: list[Any] = [None if rows is None else rows[:count] for rows in self]
        return TokenDetails(*columns)

    def with_log_probs(self, log_probs: Floats | None, top: TopLogProbs | None) -> TokenDetails:
        """Return the details with copies of the log-probabilities.

        log_probs, top: at least one row per token; further rows are ignored. A view would keep the
        engine's shared memory allocated until the request ends.
        """
        count = len(self.rounds)
        return self._replace(
            log_probs=None if log_probs is None else log_probs[:count].copy(),
            top_ids=None if top is None else top.ids[:count].copy(),
            top_log_probs=None if top is None else top.values[:count].copy(),
        )


def join_details(parts: Sequence[TokenDetails]) -> TokenDetails:
    """Concatenate details. A field that is None in any part is None in the result."""
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [
        None if any(rows is None for rows in column) else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
    return TokenDetails(*columns)


def round_details(
    number: int, tokens: TokenIds, num_accepted: int, draft: TokenIds
) -> TokenDetails:
    """Return the details of the tokens that a round with a draft emitted.

    The token after the accepted tokens is a bonus token if all were accepted, else a correction. If
    it equals the draft token, the target stopped early and rejected nothing.
    """
    count = len(tokens)
    kind: Kind = "bonus" if num_accepted == len(draft) else "correction"
    kinds = np.full(count, _INDEX[kind], np.uint8)
    kinds[:num_accepted] = _INDEX["accepted"]
    rejected = np.full(count, -1, np.int32)
    if count <= len(draft) and tokens[-1] != draft[count - 1]:
        rejected[-1] = draft[count - 1]
    return TokenDetails(np.full(count, number, np.int32), kinds, rejected)


def plain_details(before: int, count: int) -> TokenDetails:
    """Return the details of ``count`` plain target tokens. before: number of earlier rounds."""
    rounds = np.arange(before + 1, before + 1 + count, dtype=np.int32)
    return _undrafted(rounds, "plain")


def unverified_details(number: int, count: int, kind: Literal["forced", "unknown"]) -> TokenDetails:
    """Return the details of tokens that belong to round ``number`` but weren't verified in it.

    kind: ``forced`` if a guide forces the tokens after that round; ``unknown`` if they come from an
    engine that drafts by itself, because it doesn't report which tokens were drafts.
    """
    return _undrafted(np.full(count, number, np.int32), kind)


def _undrafted(rounds: Counts, kind: Kind) -> TokenDetails:
    count = len(rounds)
    return TokenDetails(
        rounds, np.full(count, _INDEX[kind], np.uint8), np.full(count, -1, np.int32)
    )


EngineRole: TypeAlias = Literal["draft", "target"]
FinishReason: TypeAlias = Literal["stop", "length"]

NO_TOKENS: TokenIds = np.empty(0, np.int32)

# Logits that draft tokens were sampled from. The loop passes them to the target without reading
# them: a Triton tensor [1, n, width] or, if the engines share memory, a handle [3].
DraftLogits: TypeAlias = Any


class DraftPlan(NamedTuple):
    """Length of the next draft.

    stop_probability: the draft stops once the joint probability of its tokens falls below this.
    plain_tokens: number of tokens that the target decodes alone if ``num_tokens`` is 0.
    """

    num_tokens: int
    stop_probability: float = 0.0
    wants_log_probs: bool = False
    plain_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens of a round and their drafter. In logits mode, also the logits.

    plain_tokens: for an empty draft, number of tokens that the target decodes alone before the
    drafter is called again.
    """

    tokens: TokenIds = field(default_factory=lambda: NO_TOKENS)  # [num_draft_tokens]
    logits: DraftLogits = None
    drafter: DrafterName = BASELINE.name
    plain_tokens: int = 1
    num_matching: int = 0  # for a copy: number of matching tokens before it
    plan: DraftPlan | None = None  # for a draft model: the plan of its call
    result: EngineResult | None = None  # for a draft model: the result of its call
    num_branches: int = 0  # number of branches that were drafted ahead for this round
    drafted_ahead: bool = False  # whether this draft is one of these branches
    seconds_saved: float = 0.0  # duration of the draft call that the branch replaced

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


class Branching(NamedTuple):
    """Number and length of the branches for each accepted length j of a verification.

    An outcome is (accepted length j, next token). Its branch continues the context, the first j
    draft tokens and that token.
    """

    counts: tuple[int, ...]  # [num_draft_tokens + 1], number of branches for each j
    lengths: tuple[int, ...]  # [num_draft_tokens + 1], maximum tokens per branch for each j


class BranchDraft(NamedTuple):
    """Draft tokens that may follow one outcome of a verification."""

    num_accepted: int
    next_token: int
    tokens: TokenIds  # [n], n >= 0


class EngineCall(NamedTuple):
    """One engine call. Values that are the same in all calls of a request aren't included."""

    engine: EngineRole
    context: TokenIds  # [context_length], prompt and answer so far
    max_new_tokens: int
    seed: int
    draft: Draft = NO_DRAFT
    branching: Branching | None = None  # draft branches after `draft` instead of verifying it
    end_id: int | None = None  # ends the call; the result excludes it
    stop_ids: tuple[int, ...] = ()  # end the call too; the result includes them
    ban_end_ids: bool = False
    wants_logits: bool = False
    wants_log_probs: bool = False
    in_engine: bool = False  # the engine drafts by itself; the timeout is the request's
    decode_ahead: int = 0  # maximum number of tokens to decode for the next call
    stop_probability: float = 0.0  # see DraftPlan
    # For `target`: bit masks of the allowed tokens per position, [num_draft_tokens + 1, words]. If
    # the engine takes no masks, the call is for one token, and the mask is sent as a bias.
    token_masks: NDArray[np.int32] | None = None


class KvBlocks(NamedTuple):
    """KV cache blocks that a call used."""

    reused: int  # blocks that an earlier call computed
    total: int = 0  # reused and new blocks; 0 if the call didn't request this number


class PromptLogProbs(NamedTuple):
    """Log-probabilities of the prompt's tokens. The values of the first token are 0."""

    values: NDArray[np.float32]  # [num_input_tokens]
    top: TopLogProbs | None = None


class EngineResult(NamedTuple):
    """The new tokens of an engine call, their details, and the duration of the call.

    seconds: duration of the whole call. engine_seconds: duration by the engine's own clock, or 0 if
    the engine doesn't report it.
    """

    tokens: TokenIds  # [n]
    seconds: float = 0.0
    engine_seconds: float = 0.0
    num_draft_tokens: int = 0  # reported by an engine that drafts by itself
    num_accepted_tokens: int = 0  # reported by an engine that drafts by itself
    log_probs: NDArray[np.float32] | None = None  # [n]
    top: TopLogProbs | None = None
    prompt_log_probs: PromptLogProbs | None = None
    logits: NDArray[np.float32] | None = None  # [n, vocab_size], from the target
    draft_logits: DraftLogits = None  # from the draft engine
    context_logits: NDArray[np.float32] | None = None  # [context_length, vocab_size]
    kv_blocks: KvBlocks | None = None
    branches: tuple[BranchDraft, ...] = ()


class DecodedText(NamedTuple):
    """Text of token ids. lengths: number of characters that each id completes."""

    text: str
    lengths: Counts | None = None  # [n - context_length], or None if not requested


class Chunk(NamedTuple):
    """Tokens that became final, with their text if it was decoded."""

    tokens: TokenIds  # [n]
    text: str
    finish_reason: FinishReason | None  # None: more will come
    totals: Totals  # statistics up to and including these tokens
    details: TokenDetails


class Engines(Protocol):
    """The engine calls of one sequence. They block, except `call_ahead`."""

    def call(self, call: EngineCall) -> EngineResult:
        """Call an engine; raise EngineCallError if it fails."""

    def call_ahead(self, call: EngineCall) -> Future[EngineResult] | None:
        """Start a draft call on another thread; return None if no thread is free.

        If an earlier call hasn't ended, it is stopped instead, and None is returned.
        """

    def stop_ahead(self) -> None:
        """Stop the last `call_ahead`. Its result then has no branches."""


class LoopPorts(Engines, Protocol):
    """All that the loop needs from outside: engines, the tokenizer and the client."""

    def reserve(self, num_output_tokens: int) -> bool:
        """Reserve KV blocks for the next round. Return whether it may begin.

        Otherwise `Decoding.run` must return. When blocks are free, it is called again.
        """

    def decode(
        self, window: TokenIds, context_length: int | None, *, wants_lengths: bool = False
    ) -> DecodedText:
        """Return the complete text that ``window[context_length:]`` adds to the tokens before it.

        If ``context_length`` is None, return the text of the whole window, including unfinished
        characters. wants_lengths: whether to return the number of characters per token.
        """

    def send(self, chunk: Chunk) -> None:
        """Send a chunk to the client."""
