"""The interface of all engines: calls and their answers, independent of the transport."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract.engine import Capabilities
from tandem.contract.errors import ErrorCode
from tandem.contract.metric import MetricList
from tandem.sampling.params import SamplingNumbers

_Ids: TypeAlias = NDArray[np.int32]
_Places: TypeAlias = NDArray[np.intp]
METRICS = MetricList()

COMPUTED_TOKENS = METRICS.counter(
    "tandem_engine_computed_tokens_total",
    "Tokens that the engine computed; tokens saved by KV reuse don't count",
)
REMOTE_CALLS = METRICS.counter(
    "tandem_engine_remote_calls_total",
    "Calls that a remote engine sent to a replica, by outcome (`ok`, `failed`)",
)


class Words:
    """Words in the layout of NVIDIA's tensors, so that long lists need no Python loop.

    ids: INT32 [n], all words concatenated. ends: end offset of each word in `ids`, ascending. Words
    without ids are ignored.
    """

    def __init__(self, ids: _Ids, ends: NDArray[Any]) -> None:
        starts = np.concatenate((np.zeros(min(1, len(ends)), np.intp), ends[:-1]))
        real = ends > starts
        self._starts: _Places = starts[real]
        self._ends: _Places = ends[real].astype(np.intp)
        self.ids: _Ids = ids[: self._ends[-1] if len(self._ends) else 0]

    @classmethod
    def of(cls, *words: Sequence[int]) -> Words:
        ids = [token for word in words for token in word]
        return cls(np.array(ids, np.int32), np.cumsum([len(word) for word in words], dtype=np.intp))

    def __len__(self) -> int:
        return len(self._ends)

    @cached_property
    def singles(self) -> _Ids:
        """The ids of single-token words, ascending, without duplicates."""
        ids: _Ids = np.unique(self.ids[self._starts[self._lengths == 1]])
        return ids

    @cached_property
    def single_ids(self) -> frozenset[int]:
        """The ids of single-token words, as a set."""
        return frozenset(self.singles.tolist())

    @cached_property
    def longest(self) -> int:
        return int(self._lengths.max(initial=0))

    def next_after(self, text: NDArray[Any]) -> _Ids:
        """Return the ids that would complete a multi-token word after `text` [n]."""
        last: _Ids = self.ids[self._phrases[1][self._at_end(text, 1)] - 1]
        return last

    def first_end(self, before: Sequence[int], new: Sequence[int], skip: int = 0) -> int | None:
        """Return the index in `new` of the token that completes a word in `before + new`, or None.

        Words that end within the first `skip` tokens of `new` don't count.
        """
        last = len(new)
        if not self.single_ids.isdisjoint(new[skip:]):
            last = next(i for i in range(skip, last) if new[i] in self.single_ids)
        if self.longest > 1:
            tail = before[max(0, len(before) - self.longest + 1) :]
            text = np.array([*tail, *new], np.int64)
            for i in range(skip, last):
                if len(self._at_end(text[: len(tail) + i + 1], 0)):
                    return i
        return last if last < len(new) else None

    @cached_property
    def _lengths(self) -> _Places:
        return self._ends - self._starts

    @cached_property
    def _phrases(self) -> tuple[_Places, _Places]:
        several = self._lengths > 1
        return self._starts[several], self._ends[several]

    def _at_end(self, text: NDArray[Any], missing: int) -> _Places:
        """Return the indices of phrases that end `text` if their last `missing` ids are ignored.

        All phrases are compared at once, backwards, in steps that double. So the number of
        operations barely depends on the number or the length of the words.
        """
        starts, ends = self._phrases[0], self._phrases[1] - missing
        left = np.flatnonzero(ends - starts <= len(text))
        found: list[_Places] = []
        depth, width = 0, 1
        while len(left):
            back = depth + np.arange(1, width + 1)
            at = ends[left, np.newaxis] - back  # [words left, width]
            inside = at >= starts[left, np.newaxis]
            same = self.ids[np.maximum(at, 0)] == text[np.maximum(len(text) - back, 0)]
            left = left[(same | ~inside).all(1)]
            depth, width = depth + width, depth + width
            over = ends[left] - starts[left] <= depth
            found.append(left[over])
            left = left[~over]
        return np.concatenate(found) if found else left


NO_WORDS = Words.of()


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
    decode_ahead_len: maximum number of tokens to decode for the next call; see the contract.
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
    decode_ahead_len: int = 0

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
    lengths: [b].
    """

    outcomes: Ids
    ids: Ids
    lengths: Ids


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


Respond: TypeAlias = Callable[[EngineResponse], None]
log = logging.getLogger(__name__)


def deliver(respond: Respond, answer: EngineResponse) -> bool:
    """Deliver an answer. Return whether that succeeded; log the error if not."""
    try:
        respond(answer)
    except Exception:
        log.exception("failed to deliver an answer")
        return False
    return True


class Engine(Protocol):
    """Serves many calls concurrently. All methods may be called from any thread.

    Attributes:
        capabilities: capabilities of this kind of engine.
        computed_tokens: number of tokens that went through the model since the engine started.

    """

    capabilities: Capabilities
    computed_tokens: int

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        """Start a call. `respond` gets its answers, from any thread; the last one is marked final.

        Raises RequestError before any answer if the call cannot be served.
        """

    def stop(self, request_id: str) -> None:
        """End the running call with this id, if any. Its final answer comes within one step."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ForwardedCall:
    """A call as tensors, with batch dimension.

    outputs: names of the wanted outputs. timeout: seconds until the call fails; 0: no limit.
    Either `respond` or `fail` is called once, from any thread. fail: called with a message, a code
    and the name of the input that is wrong, or "".
    """

    arrays: Mapping[str, NDArray[Any]]
    outputs: Sequence[str]
    request_id: str
    timeout: float
    respond: Callable[[Mapping[str, NDArray[Any]]], None]
    fail: Callable[[str, ErrorCode, str], None]


class Forwarder(ABC):
    """Forwards the tensors of calls to an engine elsewhere. For `stop` and `close`, see `Engine`.

    Attributes:
        computed_tokens: number of tokens that went through the model in this process.

    """

    computed_tokens: int

    @abstractmethod
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of calls, by replica and outcome (`ok`, `failed`)."""

    @abstractmethod
    def forward(self, call: ForwardedCall) -> None: ...

    @abstractmethod
    def stop(self, request_id: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...
