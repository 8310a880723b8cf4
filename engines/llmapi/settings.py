"""The settings of an llmapi engine, which arrive as parameters of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.engines.errors import LoadError


@dataclass(frozen=True)
class LlmApiSettings:
    """Settings of one `tensorrt_llm.LLM`. All lengths are tokens.

    model: path of the checkpoint on this machine, or its name on the Hugging Face Hub.
    max_seq_len: maximum tokens of a context and its answer together; the LLM gets room for a draft
        in addition.
    max_batch_size: sequences in one step (default: TensorRT-LLM's).
    max_num_tokens: tokens in one step; longer prompts are computed in chunks.
    kv_cache_tokens: cap of the KV cache, in blocks of `kv_block_tokens`. The cache is smaller if
        `free_gpu_memory_fraction` of the memory that the weights leave free holds less.
    prompt_lookup_num_tokens: the longest draft by prompt lookup; 0: none. How it looks up: see
        `NgramIndex`. lookup_is_public: one pool of n-grams for all requests. Then one user's text
        shows in drafts for another user.
    draft_len: the length of a draft by the model `draft_model`; 0: none.
    """

    model: str
    vocab_size: int
    max_seq_len: int
    kv_cache_tokens: int
    tensor_parallel_size: int = 1
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_batch_size: int | None = None
    max_num_tokens: int = 8192
    kv_block_tokens: int = 32
    free_gpu_memory_fraction: float = 0.9
    enable_block_reuse: bool = True
    trust_remote_code: bool = False
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 2
    lookup_keeps_all: bool = True
    lookup_uses_oldest: bool = True
    lookup_is_public: bool = False
    draft_len: int = 0
    draft_model: str | None = None

    def __post_init__(self) -> None:
        if self.prompt_lookup_num_tokens and self.draft_len:
            raise LoadError("set prompt_lookup_num_tokens or draft_len, not both")
        if self.draft_len and not self.draft_model:
            raise LoadError("draft_len requires draft_model")

    @property
    def longest_draft(self) -> int:
        return self.prompt_lookup_num_tokens or self.draft_len

    @property
    def drafts_itself(self) -> bool:
        return self.longest_draft > 0

    @property
    def max_draft_len(self) -> int:
        return 0
