"""One prompt to decode: what the client asked for, checked and complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.registry import CONTROL, DRAFTERS, DrafterKind, DrafterName
from tandem.bls.settings import AUTO
from tandem.guides.guide import Guide
from tandem.sampling.params import SamplingNumbers

TokenIds = NDArray[np.int32]


@dataclass(frozen=True)
class Sampling(SamplingNumbers):
    """How a token is chosen. Every field applies to every round of the request."""

    seed: int = 0
    bad_words: TokenIds | None = None  # [2, n]: ids, then end offsets padded with -1
    embedding_bias: NDArray[np.float32] | None = None  # [vocab_size]


GREEDY = Sampling(top_k=1)


@dataclass(frozen=True)
class Request:
    """One prompt and everything that shapes its answer. Lengths are tokens."""

    prompt_ids: TokenIds  # [num_input_tokens]
    max_tokens: int
    sampling: Sampling = GREEDY
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    drafter: DrafterName = CONTROL.name
    draft_len: int = 0  # or AUTO; prompt lookup has its own
    draft_ahead: bool | None = None  # while the target verifies; None: if it pays
    max_draft_len: int = 0  # the longest that the target verifies
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 1
    lookup_pool: str | None = None  # of earlier answers: copied from, and joined
    prediction: TokenIds | None = None  # of the answer, [n], copied from first
    prediction_num_tokens: int = 0  # most of a draft from the prediction
    use_draft_logits: bool = False
    draft_acceptance_threshold: float | None = None
    seeded: bool = False  # the client chose the seed, so it must repeat the text
    echoes_prompt: bool = False  # its text precedes the answer's
    streams_text: bool = False  # text is wanted round by round, not only at the end
    wants_text_lengths: bool = False  # how many characters each token completes
    wants_log_probs: bool = False
    wants_prompt_log_probs: bool = False
    num_top_log_probs: int = 0  # alternatives per log-probability
    wants_context_logits: bool = False
    wants_generation_logits: bool = False
    guide: Guide | None = None  # what the answer's text must look like
    lora_task_id: int = 0  # the target's LoRA adapter; 0: none
    wants_kv_blocks: bool = False  # of the context; reused ones are always counted

    @property
    def kind(self) -> DrafterKind:
        """The drafter's row in the registry."""
        return DRAFTERS[self.drafter]

    @property
    def echoed_ids(self) -> TokenIds:
        """The ids whose text precedes the answer: the prompt's ids, or none."""
        return self.prompt_ids if self.echoes_prompt else self.prompt_ids[:0]

    @cached_property
    def longest_draft(self) -> int:
        """Maximum number of draft tokens that a round of this request may verify."""
        if not (self.kind.looks_up and self.kind.drafts_in_loop):
            return self.longest_proposal
        copied = max(self.prompt_lookup_num_tokens, self.prediction_num_tokens)
        return max(self.longest_proposal, copied)

    @cached_property
    def longest_proposal(self) -> int:
        """Maximum number of draft tokens per round, not counting prompt lookup."""
        if self.kind.only_looks_up or not self.kind.drafts_in_loop:
            return 0
        return self.max_draft_len if self.draft_len == AUTO else self.draft_len

    @cached_property
    def needs_text_each_round(self) -> bool:
        """Whether the text of a round may end the answer."""
        return bool(self.stop_strings)

    @cached_property
    def detokenizes_off_path(self) -> bool:
        """Whether the client wants text per round, but no round has to wait for it."""
        return (self.streams_text or self.wants_text_lengths) and not self.needs_text_each_round
