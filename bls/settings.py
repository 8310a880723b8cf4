"""What a deployment decides for the decoding loop; it arrives as parameters of the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# "engine" is a target that drafts by itself: what a deployment has, not what a request chooses.
DrafterName = Literal["draft_model", "prompt_lookup", "hybrid", "engine", "none"]


AUTO = -1  # a draft length that follows from what drafts cost and earn


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may bring to an entry. Bytes are of UTF-8.

    max_text_bytes: one prompt; a longer one cannot fit into ``max_seq_len`` tokens, or is more than
    the profile wants to tokenize. 0 leaves it open.
    max_words, max_words_bytes: in each list of stop, bad or bias words of a prompt; and all words
    of a request together.
    """

    max_text_bytes: int = 0
    max_words: int = 1024
    max_words_bytes: int = 64 * 1024


@dataclass(frozen=True)
class LoopSettings(RequestLimits):
    """Settings of ``bls_stream``, the model that holds the loop.

    Lengths are tokens, times are seconds. ``max_seq_len`` is what a prompt, its answer and the
    longest draft must fit in together; ``kv_tokens`` and ``draft_kv_tokens`` are what each engine's
    KV cache holds.
    """

    # The models it calls
    target_model: str
    preprocessing_model: str
    postprocessing_model: str
    draft_model: str | None = None

    # What the engines are
    vocab_size: int = 0  # padded width of the target's logits
    draft_vocab_size: int = 0
    draft_max_seq_len: int = 0
    end_ids: tuple[int, ...] = ()  # the first one is what an engine is given as end_id
    max_seq_len: int = 0
    max_draft_len: int = 0  # the longest draft the target verifies
    target_keyed_randomness: bool = False  # a seed names the same noise at the same position
    draft_keyed_randomness: bool = False
    draft_stops_when_unsure: bool = False  # it honours `draft_stop_probability` and rates tokens
    target_decoupled: bool = False
    draft_decoupled: bool = False
    target_excludes_input: bool = True  # engine answers hold new tokens only
    draft_excludes_input: bool = True
    target_log_probs_with_drafts: bool = True
    target_top_log_probs: bool = False  # it tells the likeliest tokens beside those it emits
    target_prompt_log_probs: bool = False
    target_warps_draft_logits: bool = True  # takes them raw, in the draft's width
    target_compares_ids_exactly: bool = True  # sampled ids without logits
    target_top_p_with_drafts: bool = True
    target_logits_dtype: str = "FP32"  # or FP16
    draft_logits_tell_all: bool = True  # warped, they are what it draws from
    fast_logits: bool = False  # instead of logits, engines exchange handles
    logits_on_loan: bool = False  # the same by Tandem's own engines, which lose nothing by it

    drafters: tuple[DrafterName, ...] = ("none",)  # what a request may choose from

    # Defaults of a request
    drafter: DrafterName = "none"
    draft_len: int = 0  # or AUTO
    use_draft_logits: bool = False
    draft_acceptance_threshold: float | None = None
    exclude_input_in_output: bool = True
    prompt_lookup_num_tokens: int = 4
    max_matching_ngram_size: int = 2

    # How prompt lookup chooses
    lookup_keeps_all: bool = True
    lookup_uses_oldest: bool = True
    hybrid_min_ngram_size: int = 2  # below it, `hybrid` prefers the draft model

    # Admission
    kv_tokens: int = 0
    kv_block_tokens: int = 32
    draft_kv_tokens: int = 0
    draft_kv_block_tokens: int = 32
    max_requests: int = 64  # sequences decoding at once
    max_queue: int = 64  # sequences waiting for KV blocks
    max_queue_bytes: int = 64 * 2**20  # of texts waiting to be tokenized

    # Limits of a request beside RequestLimits
    max_ngram_size: int = 8  # each size costs the index memory for every token of the context
    max_logits_bytes: int = 64 * 2**20  # of all context and generation logits in an answer

    # Patience
    target_timeout: float = 60.0  # one engine call
    draft_timeout: float = 5.0
    request_timeout: float = 600.0  # a whole request, also where a client sets none
    drafter_pause: float = 5.0  # rest after a drafter failed


@dataclass(frozen=True)
class ForwarderSettings(RequestLimits):
    """Settings of an entry that answers once by forwarding to ``bls_stream``."""

    stream_model: str
    drafter: DrafterName | None = None  # what a request that names none gets; None leaves it open
    request_timeout: float = 600.0
