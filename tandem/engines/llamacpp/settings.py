"""The settings of a llamacpp engine, read from the model's parameters."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engines.errors import LoadError
from tandem.engines.stepping.settings import check_bounds

GGUF_FILE = "model.gguf"  # in the checkpoint's folder
KV_ITEM_BYTES = 2  # of a number in the KV cache: float16 keys, bfloat16 values


@dataclass(frozen=True)
class LlamaCppSettings:
    """Settings of one llamacpp engine. All lengths are in tokens.

    `LlamaCppTarget` in `tools/profiles/engines/llamacpp.py` describes the other fields.

    checkpoint: folder with `model.gguf`, relative to the model's version folder.
    kv_cache_tokens: size of the KV cache, which is allocated at load.
    max_batch_tokens: longer prompts are computed in chunks.
    draft_vocab_size: width of the draft's logits, if the same vocabulary has different padding.
    lora_adapters: must be empty.
    """

    checkpoint: str
    max_seq_len: int
    kv_cache_tokens: int
    threads: int = 0
    n_gpu_layers: int = 0
    max_draft_len: int = 0
    kv_block_tokens: int = 32
    max_batch_tokens: int = 512
    draft_vocab_size: int | None = None
    lora_adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self, self.threads)
        if self.lora_adapters:
            raise LoadError("the llamacpp engine applies no LoRA adapters; use kind torch")
