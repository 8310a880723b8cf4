"""Configurations with the fields of version 1.2.1 that tests need. Unknown fields fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    dtype: str = "auto"
    tokens_per_block: int = 32


@dataclass
class LoraConfig:
    lora_dir: list[str] = field(default_factory=list)
    max_lora_rank: int = 64
    lora_target_modules: list[str] = field(default_factory=list)
    trtllm_modules_to_hf_modules: dict[str, str] = field(default_factory=dict)
    max_loras: int | None = None
    max_cpu_loras: int | None = None


def get_default_trtllm_modules_to_hf_modules() -> dict[str, str]:
    return {
        "attn_q": "q_proj",
        "attn_k": "k_proj",
        "attn_v": "v_proj",
        "attn_dense": "o_proj",
        "mlp_h_to_4h": "gate_proj",
        "mlp_4h_to_h": "down_proj",
        "mlp_gate": "up_proj",
        "shared_expert_gate": "shared_expert.up_proj",
    }


class DecodingBaseConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_draft_len: int | None = None
    speculative_model: Any = None
    draft_len_schedule: dict[int, int] | None = None
    allow_advanced_sampling: bool = False


class NGramDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "NGram"
    max_matching_ngram_size: int = 0
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


class DraftTargetDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "Draft_Target"


class AutoDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "AUTO"


class Eagle3DecodingConfig(BaseModel):
    """A configuration whose type is a field, as in all classes of newer versions."""

    model_config = ConfigDict(extra="forbid")

    decoding_type: Literal["Eagle3"] = "Eagle3"
    max_draft_len: int
    speculative_model: str
    draft_len_schedule: dict[int, int] | None = None
