"""One prompt to decode, with all of its validated parameters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import BASELINE, DRAFTERS, DrafterKind, DrafterName
from tandem.bls.settings import AUTO
from tandem.contract.guide import Guide
from tandem.sampling.params import SamplingNumbers

TokenIds = NDArray[np.int32]


@dataclass(frozen=True)
class Sampling(SamplingNumbers):
    """Sampling parameters. Every field applies to every round of the request."""

    seed: int = 0
    bad_words: TokenIds | None = None  # [2, n]: ids, then end offsets padded with -1
    embedding_bias: NDArray[np.float32] | None = None  # [vocab_size]


GREEDY = Sampling(top_k=1)


class LoraTask(NamedTuple):
    """A LoRA adapter that the client sends to the target engine, which caches it by its id."""

    id: int
    arrays: Mapping[str, NDArray[Any]]  # weights [1, n, m] and config [1, n, 3], or empty


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a client's request, which apply to all of its prompts. Names are the inputs'.

    return_text_lengths: whether the client requested the output for text lengths.
    return_perf_metrics: whether to return times and KV blocks. Reused blocks are always counted.
    """

    stream: bool = False  # return text after each round, not only at the end
    exclude_input_in_output: bool = True
    return_text_lengths: bool = False
    return_log_probs: bool = False
    return_prompt_log_probs: bool = False
    num_top_log_probs: int = 0  # number of alternatives per token
    return_context_logits: bool = False
    return_generation_logits: bool = False
    return_perf_metrics: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False


@dataclass(frozen=True)
class Request(Options):
    """One prompt and all parameters of its answer. Lengths are in tokens."""

    prompt_ids: TokenIds  # [num_input_tokens]
    max_tokens: int
    sampling: Sampling = GREEDY
    min_tokens: int = 0
    priority: int = 0  # a lower one leaves the queue earlier
    end_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    drafter: DrafterName = BASELINE.name
    draft_len: int = 0  # or AUTO; copies have their own limits below
    draft_ahead: bool | None = None  # draft while the target verifies; None: if it saves time
    max_draft_len: int = 0  # maximum draft length that the target verifies
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 1
    lookup_pool: str | None = None  # name of the pool of answers to copy from and add to
    prediction: TokenIds | None = None  # predicted answer to copy from, [n]
    prediction_num_tokens: int = 0  # maximum length of a draft from the prediction
    use_draft_logits: bool = False
    draft_acceptance_threshold: float | None = None
    seeded: bool = False  # the client chose the seed, so the output must be reproducible
    guide: Guide | None = None  # constrains the answer's text
    lora_name: str | None = None  # LoRA adapter of the target, and of the draft if it has it
    lora_task: LoraTask | None = None  # the client's own LoRA adapter of the target
    cache_salt: int = 0  # the engines reuse keys and values only between equal numbers

    @cached_property
    def sequence_key(self) -> str:
        """A name for the sequence, which is in the ids of all its engine calls."""
        return uuid.uuid4().hex

    @property
    def drafter_kind(self) -> DrafterKind:
        """The drafter's row in the registry."""
        return DRAFTERS[self.drafter]

    @property
    def echoed_ids(self) -> TokenIds:
        """The prompt's ids if their text precedes the answer, else no ids."""
        return self.prompt_ids[:0] if self.exclude_input_in_output else self.prompt_ids

    @cached_property
    def longest_draft(self) -> int:
        """Maximum number of draft tokens per round, from all sources."""
        if not (self.drafter_kind.looks_up and self.drafter_kind.drafts_in_loop):
            return self.longest_proposal
        copied = max(self.prompt_lookup_num_tokens, self.prediction_num_tokens)
        return max(self.longest_proposal, copied)

    @cached_property
    def longest_proposal(self) -> int:
        """Maximum number of draft tokens per round from a drafter other than prompt lookup."""
        if self.drafter_kind.only_looks_up or not self.drafter_kind.drafts_in_loop:
            return 0
        return self.max_draft_len if self.draft_len == AUTO else self.draft_len
