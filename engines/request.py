"""One engine call and its answers, independent of how they are transported."""

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
Seeds: TypeAlias = NDArray[np.uint64]
MaskWords: TypeAlias = NDArray[np.int32]  # 32 ids each: bit (id % 32) of word (id // 32)

MAX_BRANCHES = 1024  # of one call; the loop asks for 128 at most
NO_IDS: Ids = np.empty(0, np.int32)


@dataclass(frozen=True)
class SamplingParams(SamplingNumbers):
    """How the next token is chosen from the model's logits.

    `bad_words` and the penalties apply to the context and all tokens after it. `min_tokens` counts
    the new tokens of this call. Until it is reached, neither the end id nor a single-token stop
    word is generated, and no stop word ends the answer.
    """

    bad_words: Words = NO_WORDS
    embedding_bias: Floats | None = None  # [vocab_size]
    min_tokens: int = 0
    seed: int | None = None  # None: a random one per call


GREEDY = SamplingParams(top_k=1)


class LikeliestTokens(NamedTuple):
    """The k most likely tokens at each of n positions, best first, and their log-probabilities."""

    ids: NDArray[np.int32]  # [n, k]
    log_probs: Floats  # [n, k]


class EngineRequest(NamedTuple):
    """One call: continue `input_ids` by up to `max_new_tokens`, verifying `draft_ids` if any.

    `draft_logits` [len(draft_ids), vocab_size] switches verification from ids to probabilities:
    they are the draft engine's `generation_logits`, i.e. before temperature, top-k and top-p.
    `num_top_log_probs`: number of alternatives per token that has log-probabilities. Tokens of the
    context have them with `return_prompt_log_probs`. `end_id` None: no token ends the answer.
    `draft_stop_probability`: stop when the joint probability of the new tokens falls below this.
    `token_masks` [rows, ceil(vocab_size / 32)]: the tokens that are allowed at each position, as
    bits. There is a row for each draft token and one more, or one for each new token of a plain
    call. If `branches` is true, the call verifies nothing and drafts after outcomes instead.
    `lora_task_id`: the engine's LoRA adapter to apply, counted from 1; 0: none.
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
    arrival_time_ns: int = 0
    branch_counts: Ids | None = None
    branch_output_len: Ids = NO_IDS
    branch_seeds: Seeds | None = None

    @property
    def branches(self) -> bool:
        """Whether the call drafts after outcomes: (accepted length j, next token).

        `branch_counts` [k + 1], for k draft tokens: number of next tokens at each j.
        `branch_output_len` [k + 1]: most tokens after each. `branch_seeds` [k + 1]: the seeds of
        plain calls there; None: the call's own, and noise by position that the target shares.
        """
        return self.branch_counts is not None

    def plain(self, accepted: int) -> EngineRequest:
        """Return the plain call that a branch after ``accepted`` tokens equals, except its text."""
        seeds, sampling = self.branch_seeds, self.sampling
        return self._replace(
            max_new_tokens=int(self.branch_output_len[accepted]),
            draft_ids=NO_IDS,
            branch_counts=None,
            sampling=replace(
                sampling,
                min_tokens=max(0, sampling.min_tokens - accepted - 1),
                seed=sampling.seed if seeds is None else int(seeds[accepted]),
            ),
        )


class CallUsage(NamedTuple):
    """The cost of a call so far. Times are nanoseconds of the system clock; 0: not yet.

    Blocks are `kv_block_tokens` tokens each; `computed_tokens` went through the model.
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
    lengths: [b]. log_probs: [b, K], log-softmax of the model's own logits, if asked for.
    """

    outcomes: Ids
    ids: Ids
    lengths: Ids
    log_probs: Floats | None


class EngineResponse(NamedTuple):
    """One response to a call: the tokens since the last one (all of them unless streaming).

    error, code: one line that the call ends with instead, and the kind of error.
    log_probs: [len(tokens)], log-softmax of the model's own logits, before any processing.
    cum_log_prob: their sum since the call began.
    top_log_probs: alternatives at the positions of the tokens.
    prompt_log_probs: [len(input_ids)], on the first answer, with prompt_top_log_probs; nothing
        precedes the first token, whose row is zeros.
    context_logits: [len(input_ids), vocab_size], on the first answer.
    generation_logits: [len(tokens), vocab_size], after bias, penalties, bans and masks, before
        temperature, top-k and top-p. A draft token was drawn from them.
    """

    tokens: tuple[int, ...] = ()
    final: bool = True
    first: bool = True
    error: str | None = None
    code: ErrorCode = "INTERNAL"
    log_probs: Floats | None = None
    cum_log_prob: float = 0.0
    top_log_probs: LikeliestTokens | None = None
    prompt_log_probs: Floats | None = None
    prompt_top_log_probs: LikeliestTokens | None = None
    context_logits: Floats | None = None
    generation_logits: Floats | None = None
    num_output_tokens: int = 0  # of the whole call so far
    usage: CallUsage = CallUsage()
    branches: Branches | None = None
