"""The settings of an llmapi engine, read from the model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.engines.errors import LoadError

# `decoding_type: AUTO` becomes an n-gram config with at most this many draft tokens
# (tensorrt_llm/_torch/speculative/auto_heuristic.py).
AUTO_DRAFT_LEN = 5


@dataclass(frozen=True)
class LlmApiSettings:
    """Settings of one `tensorrt_llm.LLM`. All lengths are in tokens.

    `LlmApiTarget` in `tools/profiles/engines/llmapi.py` describes the other fields.

    max_seq_len: maximum length of a context and its answer, without the space for a draft.
    max_num_tokens: longer prompts are computed in chunks.
    speculative_config: TensorRT-LLM's own, also for the section's `prompt_lookup` and `draft`.
    lora_adapters: folders of LoRA adapters. A call selects one by its index, counted from 1
        (`lora_task_id`).
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
    speculative_config: Mapping[str, Any] | None = None
    llm_args: Mapping[str, Any] | None = None
    lora_adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.speculative_config is not None:
            if not isinstance(self.speculative_config.get("decoding_type"), str):
                raise LoadError(
                    "speculative_config.decoding_type must be set, for example to NGram"
                )
            if self.longest_draft < 1:
                raise LoadError(
                    "speculative_config.max_draft_len must be at least 1; each sequence needs "
                    "room for a draft"
                )
            if self.lora_adapters and self.speculative_config.get("use_dynamic_tree"):
                raise LoadError(
                    "speculative_config.use_dynamic_tree and lora_adapters can't be combined in "
                    "TensorRT-LLM; remove one"
                )
        llm_args = self.llm_args or {}
        kv_cache_config = llm_args.get("kv_cache_config", {})
        if not isinstance(kv_cache_config, Mapping):
            raise LoadError("llm_args.kv_cache_config must be an object")
        for name in DECIDED_ARGUMENTS:
            if name in llm_args:
                raise LoadError(f"llm_args.{name} is set from other keys of the profile; remove it")
        for name in DECIDED_KV_CACHE_ARGUMENTS:
            if name in kv_cache_config:
                raise LoadError(
                    f"llm_args.kv_cache_config.{name} is set from other keys of the profile; "
                    "remove it"
                )

    @property
    def longest_draft(self) -> int:
        """Maximum number of draft tokens per step.

        MTP's key was `num_nextn_predict_layers` before it became `max_draft_len`.
        """
        config = self.speculative_config or {}
        if config.get("decoding_type") == "AUTO":
            return AUTO_DRAFT_LEN
        length = config.get("max_draft_len", config.get("num_nextn_predict_layers", 0))
        return length if isinstance(length, int) else 0

    @property
    def drafts_itself(self) -> bool:
        return self.speculative_config is not None

    @property
    def max_draft_len(self) -> int:
        return 0


# Arguments of `LLM()` and `KvCacheConfig()` that the settings determine.
DECIDED_ARGUMENTS = (
    "model",
    "skip_tokenizer_init",
    "tensor_parallel_size",
    "dtype",
    "trust_remote_code",
    "max_seq_len",
    "max_num_tokens",
    "max_batch_size",
    "enable_chunked_prefill",
    "speculative_config",
    "enable_lora",
    "lora_config",
)
DECIDED_KV_CACHE_ARGUMENTS = (
    "enable_block_reuse",
    "max_tokens",
    "free_gpu_memory_fraction",
    "tokens_per_block",
)
