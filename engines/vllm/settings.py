"""Settings of a vLLM engine, which arrive as parameters of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.engines.errors import LoadError


@dataclass(frozen=True)
class VllmSettings:
    """Settings of one vLLM process. All lengths are tokens.

    model: path of the checkpoint on the serving machine, or its name on the Hugging Face Hub.
    max_seq_len: context and answer together. max_draft_len: the longest draft that it verifies; 0
    for a draft engine. draft_vocab_size: another width that draft logits may have.
    kv_cache_tokens: size of the KV cache. max_batch_size: sequences per step. max_batch_tokens:
    tokens per step; longer prompts are computed in chunks. speculative_config: vLLM's own, with
    which the engine drafts by itself and verifies no others. arguments: more of vLLM's engine
    arguments, for example {quantization: fp8}. python: the Python that has vLLM. device_ids: the
    GPUs to use, all visible ones if empty. threads: of a CPU engine; 0 leaves the choice to
    PyTorch.
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
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        spare = 0 if self.drafts_itself else self.max_batch_size * self.max_draft_len
        if self.max_batch_tokens <= 2 * spare:
            raise LoadError(
                f"max_batch_tokens must be greater than {2 * spare} (2 * max_batch_size * "
                f"max_draft_len); got {self.max_batch_tokens}"
            )
        known = sorted(set(self.arguments or ()) & set(DECIDED_ARGUMENTS))
        if known:
            raise LoadError(
                f"arguments.{known[0]} isn't supported: other keys of the profile set it; remove it"
            )

    @property
    def drafts_itself(self) -> bool:
        return bool(self.speculative_config)


# Arguments of vLLM that follow from the settings.
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
)
