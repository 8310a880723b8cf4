"""A deployment's settings for the decoding loop, read from parameters of the Triton model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.bls.drafters.registry import BASELINE, DrafterName
from tandem.contract.engine import Capabilities

LogitsType = Literal["FP32", "FP16"]

AUTO = -1  # the draft length is chosen per round from measured costs and acceptance rates
# The values of `draft_ahead`: always, never, or if it saves time.
DRAFT_AHEAD: dict[str, bool | None] = {"true": True, "false": False, "auto": None}
# Maximum number of threads that draft ahead. Each serves one sequence and occupies a thread of
# Triton's pool. With more sequences, drafting ahead hardly pays.
MAX_AHEAD_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits for one request to an entry. Sizes are in bytes of UTF-8.

    max_text_bytes: maximum size of one prompt (0: no limit). It is set by the profile, or follows
    from ``max_seq_len``. max_words: maximum number of words in each list of stop, bad or bias words
    of a prompt. max_words_bytes: maximum size of all words of a request.
    """

    max_text_bytes: int = 0
    max_words: int = 1024
    max_words_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """One engine that the loop calls. Lengths are in tokens.

    model: name of the Triton model. vocab_size: width of the logits, including padding.
    max_seq_len: maximum length of a context, its answer and the longest draft together.
    max_draft_len: maximum length of a draft that the engine verifies. kv_cache_tokens: size of the
    KV cache in tokens. kv_block_tokens: size of a KV block in tokens. timeout: limit for one call
    in seconds. excludes_input: whether answers contain new tokens only. lora_adapters: names of the
    engine's LoRA adapters, numbered from 1. client_adapters: whether clients may send their own
    LoRA adapters to the engine.
    """

    model: str
    vocab_size: int
    max_seq_len: int
    kv_cache_tokens: int
    kv_block_tokens: int
    timeout: float
    max_draft_len: int = 0
    decoupled: bool = False
    excludes_input: bool = True
    logits_dtype: LogitsType = "FP32"
    lora_adapters: tuple[str, ...] = ()
    client_adapters: bool = False
    capabilities: Capabilities

    @property
    def context(self) -> int:
        """Maximum number of tokens in a prompt and its output together."""
        return self.max_seq_len - self.max_draft_len

    @property
    def kv_blocks(self) -> int:
        return self.kv_cache_tokens // self.kv_block_tokens

    def kv_blocks_for(self, num_tokens: int) -> int:
        """Return the number of KV blocks for ``num_tokens`` tokens of one sequence."""
        return -(-num_tokens // self.kv_block_tokens)


@dataclass(frozen=True, kw_only=True)
class DraftTokenizer:
    """The draft engine's tokenizer, if it differs from the target's.

    folder: folder next to model.py. end_ids: end-of-sequence ids of the draft model.
    """

    folder: str
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DrafterModule:
    """A custom drafter: its Python file, and changes to its settings."""

    file: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class LoopSettings(RequestLimits):
    """Settings of ``bls_stream``, the model that runs the loop.

    Each field is a parameter in the model's ``config.pbtxt``. Lengths are in tokens, times in
    seconds.
    """

    # Models that the loop calls
    target: EngineSettings
    draft: EngineSettings | None = None
    preprocessing_model: str
    postprocessing_model: str

    tokenizer_dir: str = "tokenizer"  # folder next to model.py
    skip_special_tokens: bool = True  # leave them out of the text
    detokenize_in_loop: bool = True  # if not, rounds call the postprocessing model
    draft_tokenizer: DraftTokenizer | None = None  # None: the engines share a vocabulary
    end_ids: tuple[int, ...] = ()  # end-of-sequence ids; engines get the first one as end_id
    engines_share_device: bool = False  # if so, they slow each other down
    drafters: tuple[DrafterName, ...] = (BASELINE.name,)  # drafters that requests may select
    drafter_modules: tuple[DrafterModule, ...] = ()  # custom drafters

    # Defaults for requests
    drafter: DrafterName = BASELINE.name
    draft_len: int = 0  # or AUTO
    draft_ahead: bool | None = None  # draft while the target verifies; None: if it saves time
    use_draft_logits: bool = False
    draft_acceptance_threshold: float | None = None
    exclude_input_in_output: bool = True
    prompt_lookup_num_tokens: int = 4
    max_matching_ngram_size: int = 4

    # Prompt lookup
    hybrid_min_ngram_size: int = 2  # for shorter matches, `hybrid` uses the draft model
    max_pool_tokens: int = 0  # total size of the pools; 0: no pools

    # Admission limits
    max_requests: int = 64  # maximum number of sequences that decode at the same time
    max_queue: int = 64  # maximum number of sequences that have arrived but don't decode yet
    max_queue_bytes: int = 64 * 2**20  # maximum size of requests that wait for the tokenizer; one
    # may always wait

    # Limits for one request, besides RequestLimits
    max_ngram_size: int = 8
    max_logits_bytes: int = 64 * 2**20  # maximum size of all logits in an answer
    max_guide_bytes: int = 256 * 2**10  # maximum size of a prompt's guide; 0: no guides

    # Timeouts, besides EngineSettings.timeout
    request_timeout: float = 600.0  # maximum duration of a request; clients may set a shorter one
    drafter_pause: float = 5.0  # pause after a failure of the draft model

    @property
    def draft_kv_blocks(self) -> int:
        """Number of blocks in the draft engine's KV cache; 0 without a draft engine."""
        return self.draft.kv_blocks if self.draft else 0

    @property
    def draft_stops_when_unsure(self) -> bool:
        """Whether the draft engine accepts `draft_stop_probability` and reports probabilities."""
        return self.draft is not None and self.draft.capabilities.stops_when_unsure

    @property
    def draft_branches(self) -> bool:
        """Whether one call to the draft engine can draft branches for several outcomes."""
        return self.draft is not None and self.draft.capabilities.branches

    @property
    def draft_samples_exactly(self) -> bool:
        """Whether the draft engine samples exactly from its warped logits."""
        return self.draft is None or self.draft.capabilities.samples_exactly

    @property
    def draft_returns_logits(self) -> bool:
        return self.draft is None or self.draft.capabilities.returns_logits

    @property
    def shared_logits(self) -> bool:
        """Whether the draft engine passes its logits to the target in shared memory."""
        engines = (self.target, self.draft)
        return all(e is not None and e.capabilities.shares_logits for e in engines)


@dataclass(frozen=True)
class ForwarderSettings(RequestLimits):
    """Settings of an entry that forwards requests to ``bls_stream`` and returns one response."""

    stream_model: str
    drafter: DrafterName | None = None  # default for requests; None: default of ``bls_stream``
    request_timeout: float = LoopSettings.request_timeout
