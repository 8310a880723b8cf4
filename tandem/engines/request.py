"""One engine call and its answers, independent of the transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract.errors import ErrorCode
from tandem.engines.words import NO_WORDS, Words
from tandem.sampling.params import SamplingNumbers

Ids: TypeAlias = NDArray[np.int32]  # [n]
Floats: TypeAlias = NDArray[np.float32]
MaskWords: TypeAlias = NDArray[np.int32]  # 32 ids per word: bit (id % 32) of word (id // 32)

MAX_BRANCHES = 1024  # per call; the loop requests at most 128
NO_IDS: Ids = np.empty(0, np.int32)


@dataclass(frozen=True)
class SamplingParams(SamplingNumbers):
    """How to choose the next token from the model's logits.

    `bad_words` and the penalties apply to the context and all tokens after it. `min_tokens` counts
    the new tokens of this call. Until it is reached, neither the end id nor a single-token stop
    word is generated, and no stop word ends the answer.
    """

    bad_words: Words = NO_WORDS
    embedding_bias: Floats | None = None  # [vocab_size]
    min_tokens: int = 0
    seed: int | None = None  # None: a random seed per call


GREEDY = SamplingParams(top_k=1)


class LikeliestTokens(NamedTuple):
    """The k most likely tokens at each of n positions, best first, with log-probabilities."""

    ids: NDArray[np.int32]  # [n, k]
    log_probs: Floats  # [n, k]


class EngineRequest(NamedTuple):
    """One call: continue `input_ids` by up to `max_new_tokens` and verify `draft_ids`, if any.

    draft_logits: [len(draft_ids), vocab_size], the draft engine's `generation_logits`, before
        temperature, top-k and top-p. They switch verification from ids to probabilities.
    num_top_log_probs: number of alternatives for each token with log-probabilities. Tokens of the
        context have log-probabilities if `return_prompt_log_probs` is set.
    end_id: id that ends the answer; None: no id does.
    draft_stop_probability: stop when the joint probability of the new tokens falls below this.
    token_masks: [rows, ceil(vocab_size / 32)], the tokens that are allowed at each position, as
        bits. A verification has one row per draft token and one more; a plain call has one row per
        new token.
    branch_counts, branch_output_len: see `branches`.
    lora_task_id: the engine's LoRA adapter to apply, counted from 1; 0: none.
    cache_salt: keys and values are only reused between calls with the same number.
    """

    request_id: str
    input_ids: Ids
    max_new_tokens: int
    draft_ids: Ids = NO_IDS
    draft_logits: Floats | None = None
    draft_acceptance_threshold: float | None = None
    token_masks: MaskWords | None = None
    end_id: int | None = None
    stop_words: Words = NO_WORDS
    sampling: SamplingParams = GREEDY
    draft_stop_probability: float | None = None
    return_log_probs: bool = False
    return_prompt_log_probs: bool = False
    num_top_log_probs: int = 0
    return_context_logits: bool = False
    return_generation_logits: bool = False
    return_perf_metrics: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False
    streaming: bool = False
    exclude_input: bool = True
    lora_task_id: int = 0
    cache_salt: int = 0
    arrival_time_ns: int = 0
    branch_counts: Ids | None = None
    branch_output_len: Ids = NO_IDS

    @property
    def branches(self) -> bool:
        """Whether the call drafts ahead, after possible outcomes (accepted length j, next token).

        Such a call verifies nothing. For k draft tokens, `branch_counts` [k + 1] is the number of
        next tokens at each j, and `branch_output_len` [k + 1] is the maximum number of tokens after
        each.
        """
        return self.branch_counts is not None

    @property
    def max_new(self) -> int:
        """Maximum number of tokens after the context, including unverified drafts.

        The tokens of branches don't count.
        """
        verified = len(self.draft_ids) + 1
        return verified if self.branches else max(self.max_new_tokens, verified)

    @property
    def max_length(self) -> int:
        """Maximum number of the call's tokens in the KV cache, which excludes the last token."""
        return len(self.input_ids) + self.max_new - 1

    def plain_call(self, accepted: int) -> EngineRequest:
        """Return a plain call with a branch's limits after `accepted` tokens. Keeps the text."""
        min_tokens = max(0, self.sampling.min_tokens - accepted - 1)
        return self._replace(
            max_new_tokens=int(self.branch_output_len[accepted]),
            draft_ids=NO_IDS,
            branch_counts=None,
            sampling=replace(self.sampling, min_tokens=min_tokens),
        )


class CallUsage(NamedTuple):
    """The cost of a call so far. Times are in nanoseconds of the system clock; 0: not yet known.

    A block has `kv_block_tokens` tokens. `computed_tokens` is the number of tokens that went
    through the model.
    """

    reused_blocks: int = 0
    new_blocks: int = 0
    computed_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    first_scheduled_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0


class Branches(NamedTuple):
    """Drafts of a call with `branch_counts`: b branches, sorted by accepted length, then rank.

    outcomes: [b, 2], accepted length and next token. ids: [b, K], the drafts, padded with zeros.
    lengths: [b]. log_probs: [b, K], log-softmax of the model's raw logits; None if not requested.
    """

    outcomes: Ids
    ids: Ids
    lengths: Ids
    log_probs: Floats | None


class EngineResponse(NamedTuple):
    """One response to a call: the new tokens if the call streams, otherwise all tokens.

    error, code: if set, the call ends with this one-line error of this kind.
    log_probs: [len(tokens)], log-softmax of the model's logits, before any processing.
    top_log_probs: alternatives at the positions of the tokens.
    prompt_log_probs: [len(input_ids)], on the first answer, with prompt_top_log_probs. The first
        token's row is zeros, because no token precedes it.
    context_logits: [len(input_ids), vocab_size], on the first answer.
    generation_logits: [len(tokens), vocab_size], after bias, penalties, bans and masks, before
        temperature, top-k and top-p. Draft tokens are drawn from these.
    """

    tokens: tuple[int, ...] = ()
    final: bool = True
    error: str | None = None
    code: ErrorCode = "INTERNAL"
    log_probs: Floats | None = None
    top_log_probs: LikeliestTokens | None = None
    prompt_log_probs: Floats | None = None
    prompt_top_log_probs: LikeliestTokens | None = None
    context_logits: Floats | None = None
    generation_logits: Floats | None = None
    usage: CallUsage = CallUsage()
    branches: Branches | None = None
