"""Settings of a deployment for the decoding loop, which reads them from model parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.bls.drafters.registry import CONTROL, DrafterName
from tandem.contract.capabilities import Capabilities

LogitsType = Literal["FP32", "FP16"]

AUTO = -1  # a draft length that depends on what drafts cost and gain
# The values of `draft_ahead`: always, never, or if it pays.
DRAFT_AHEAD: dict[str, bool | None] = {"true": True, "false": False, "auto": None}
# Threads that draft ahead, each for one sequence. With more sequences it hardly pays, and each
# thread takes a place in Triton's thread pool.
MAX_AHEAD_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of one request to an entry. Sizes are in bytes of UTF-8.

    max_text_bytes: of one prompt, because a longer one cannot fit into ``max_seq_len`` tokens, or
    because the profile limits it; 0: no limit. max_words: in each list of stop, bad or bias words
    of a prompt. max_words_bytes: of all words of a request.
    """

    max_text_bytes: int = 0
    max_words: int = 1024
    max_words_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """One engine, as the loop calls it. Lengths are tokens.

    model: its name in Triton. vocab_size: padded width of its logits. max_seq_len: limit of a
    context, its answer and the longest draft together. max_draft_len: the longest draft that it
    verifies. kv_cache_tokens: size of its KV cache, in blocks of ``kv_block_tokens``. timeout:
    seconds for one call. excludes_input: its answers hold new tokens only. fast_logits: it takes a
    handle to the draft's logits instead of the logits.
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
    fast_logits: bool = False
    capabilities: Capabilities

    @property
    def kv_blocks(self) -> int:
        return self.kv_cache_tokens // self.kv_block_tokens

    def kv_blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks ``num_tokens`` tokens of one sequence fill."""
        return -(-num_tokens // self.kv_block_tokens)


@dataclass(frozen=True, kw_only=True)
class DraftTokenizer:
    """The draft engine's own tokenizer, if it isn't the target's.

    folder: next to model.py. end_ids: its tokens that end an answer.
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
    """Settings of ``bls_stream``, the model with the loop. Lengths are tokens, times seconds.

    Each field is a parameter in its ``config.pbtxt``.
    """

    # The models it calls
    target: EngineSettings
    draft: EngineSettings | None = None
    preprocessing_model: str
    postprocessing_model: str

    tokenizer_dir: str = "tokenizer"  # next to model.py, for guides and translated drafts
    draft_tokenizer: DraftTokenizer | None = None  # None: the engines share a vocabulary
    end_ids: tuple[int, ...] = ()  # engines get the first one as end_id
    engines_share_device: bool = False  # so they slow each other down
    drafters: tuple[DrafterName, ...] = (CONTROL.name,)  # that requests may choose
    drafter_modules: tuple[DrafterModule, ...] = ()  # the deployment's own drafters
    lora_adapters: tuple[str, ...] = ()  # of the target, which numbers them from 1

    # Defaults of a request
    drafter: DrafterName = CONTROL.name
    draft_len: int = 0  # or AUTO
    draft_ahead: bool | None = None  # while the target verifies; None: if it pays
    use_draft_logits: bool = False
    draft_acceptance_threshold: float | None = None
    exclude_input_in_output: bool = True
    prompt_lookup_num_tokens: int = 4
    max_matching_ngram_size: int = 2

    # How prompt lookup chooses
    lookup_keeps_all: bool = True
    lookup_uses_oldest: bool = True
    hybrid_min_ngram_size: int = 2  # below it, `hybrid` prefers the draft model
    max_pool_tokens: int = 0  # of earlier answers, in all pools of all loops; 0: no pools

    # Admission, of all loops together
    instances: int = 1  # loops, each in its own process
    max_requests: int = 64  # sequences decoding at once
    max_queue: int = 64  # sequences waiting for KV blocks
    max_queue_bytes: int = 64 * 2**20  # of text that waits to be tokenized

    # Limits of a request, besides RequestLimits
    max_ngram_size: int = 8  # the index needs memory per size and context token
    max_logits_bytes: int = 64 * 2**20  # of all context and generation logits in an answer
    max_guide_bytes: int = 256 * 2**10  # of a prompt's guide; 0: no guides

    # Time-outs; an engine has its own
    request_timeout: float = 600.0  # a whole request, also if the client sets none
    drafter_pause: float = 5.0  # pause after the draft model failed

    @property
    def draft_kv_blocks(self) -> int:
        """Blocks in the draft's KV cache; 0 without a draft."""
        return self.draft.kv_blocks if self.draft else 0

    @property
    def max_queue_bytes_each(self) -> int:
        """Bytes of text that may wait to be tokenized in each loop. One text may always wait."""
        return self.max_queue_bytes // self.instances

    @property
    def max_pool_tokens_each(self) -> int:
        """Tokens of earlier answers that each loop keeps in its pools."""
        return self.max_pool_tokens // self.instances

    @property
    def draft_stops_when_unsure(self) -> bool:
        """Whether the draft engine takes `draft_stop_probability` and reports probabilities."""
        return self.draft is not None and self.draft.capabilities.stops_when_unsure

    @property
    def draft_branches(self) -> bool:
        """Whether the draft engine can draft after many outcomes of a verification in one call."""
        return self.draft is not None and self.draft.capabilities.branches

    @property
    def draft_logits_tell_all(self) -> bool:
        """Whether the draft engine draws from its logits, warped."""
        return self.draft is None or self.draft.capabilities.logits_tell_all

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
    """Settings of an entry that answers once by forwarding to ``bls_stream``."""

    stream_model: str
    drafter: DrafterName | None = None  # default of requests; None: the stream entry's default
    request_timeout: float = LoopSettings.request_timeout
