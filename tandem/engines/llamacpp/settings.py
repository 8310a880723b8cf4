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

    checkpoint: folder with `model.gguf`, relative to the model's version folder.
    threads: number of threads; 0: one per core that the process may use.
    n_gpu_layers: number of layers on a GPU; -1: all. Needs a build of llama.cpp for the GPU.
    max_seq_len: maximum total length of a context and its answer.
    max_draft_len: maximum number of draft tokens that the engine verifies; 0: none.
    kv_cache_tokens: size of the KV cache, which is allocated at load.
    kv_block_tokens: unit in which the KV cache is counted.
    max_batch_tokens: maximum number of tokens per forward pass; longer prompts are computed in
        chunks.
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
