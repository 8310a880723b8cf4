"""The settings of a torch engine, read from the model's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.engines.errors import LoadError
from tandem.engines.stepping.settings import check_bounds

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})  # in transformers' layer_types


@dataclass(frozen=True)
class TorchSettings:
    """Settings of one torch engine. All lengths are in tokens.

    `TorchTarget` in `tools/profiles/engines/torch.py` describes the other fields.

    checkpoint: folder relative to the model's version folder.
    max_batch_tokens: longer prompts are computed in chunks.
    gpu_memory_fraction: a model that doesn't fit is rejected before it is loaded.
    draft_vocab_size: width of the draft's logits, if the same vocabulary has different padding.
    lora_adapters: folders relative to the model's version folder. A call selects one by its index,
        counted from 1 (`lora_task_id`).
    """

    checkpoint: str
    max_seq_len: int
    kv_cache_tokens: int
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int = 0
    max_draft_len: int = 0
    kv_block_tokens: int = 32
    max_batch_tokens: int = 512
    gpu_memory_fraction: float = 0.9
    draft_vocab_size: int | None = None
    lora_adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self, self.threads)
        if not 0 < self.gpu_memory_fraction <= 1:
            raise LoadError(
                "gpu_memory_fraction must be greater than 0 and at most 1; "
                f"got {self.gpu_memory_fraction}"
            )
