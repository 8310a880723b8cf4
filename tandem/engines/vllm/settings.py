"""The settings of a vLLM engine, read from the model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.engines.errors import LoadError

# Tandem's own method in `speculative_config`, and its key for copies in addition to other methods.
PROMPT_LOOKUP, COPY_LEN = "prompt_lookup", "prompt_lookup_num_tokens"


@dataclass(frozen=True)
class VllmSettings:
    """Settings of one vLLM process. All lengths are in tokens.

    `VllmTarget` in `tools/profiles/engines/vllm.py` describes the other fields.

    draft_vocab_size: a second accepted width of draft logits.
    max_batch_size: maximum number of sequences per step.
    max_batch_tokens: maximum number of tokens per step; longer prompts are computed in chunks.
    lora_adapters: folders of LoRA adapters. A call selects one by its index, counted from 1
        (`lora_task_id`).
    threads: number of threads of a CPU engine; 0: PyTorch's default.
    """

    model: str
    vocab_size: int
    max_seq_len: int
    kv_cache_tokens: int
    max_draft_len: int = 0
    draft_vocab_size: int | None = None
    kv_block_tokens: int = 32
    max_batch_size: int = 64
    max_batch_tokens: int = 8192
    tensor_parallel_size: int = 1
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    gpu_memory_fraction: float = 0.9
    enforce_eager: bool = False
    trust_remote_code: bool = False
    threads: int = 0
    device_ids: tuple[int, ...] = ()
    python: str = "python3"
    speculative_config: Mapping[str, Any] | None = None
    lora_adapters: tuple[str, ...] = ()
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_copies()
        added = self.copy_len if self.drafts_itself else self.max_draft_len
        least = 2 * self.max_batch_size * added
        if self.max_batch_tokens <= least:
            raise LoadError(
                f"max_batch_tokens must be greater than {least} (2 * max_batch_size * the longest "
                f"draft, {added}); got {self.max_batch_tokens}"
            )
        known = sorted(set(self.arguments or ()) & set(DECIDED_ARGUMENTS))
        if known:
            raise LoadError(
                f"arguments.{known[0]} is set from other keys of the profile; remove it"
            )

    def _check_copies(self) -> None:
        own = self.speculative_config or {}
        if COPY_LEN not in own:
            return
        if own.get("method") == PROMPT_LOOKUP:
            raise LoadError(
                f"speculative_config.{COPY_LEN} is for other methods; set num_speculative_tokens"
            )
        if type(own[COPY_LEN]) is not int or own[COPY_LEN] < 1:
            raise LoadError(
                f"speculative_config.{COPY_LEN} must be an integer of at least 1; "
                f"got {own[COPY_LEN]!r}"
            )
        if own.get("draft_sample_method") == "probabilistic":
            raise LoadError(
                f"speculative_config.{COPY_LEN} requires draft_sample_method: greedy, because "
                "copies have no probabilities"
            )

    @property
    def drafts_itself(self) -> bool:
        return bool(self.speculative_config)

    @property
    def copy_len(self) -> int:
        """Maximum number of tokens that a draft copies from the text by prompt lookup; 0: none."""
        own = self.speculative_config or {}
        name = "num_speculative_tokens" if own.get("method") == PROMPT_LOOKUP else COPY_LEN
        copy_len: int = own.get(name, 0)
        return copy_len


# Arguments of vLLM that the settings determine.
DECIDED_ARGUMENTS = (
    "model",
    "skip_tokenizer_init",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "dtype",
    "gpu_memory_utilization",
    "enforce_eager",
    "trust_remote_code",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "scheduler_cls",
    "speculative_config",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
)
