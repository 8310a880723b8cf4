"""The section of a GGUF file on the llamacpp engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tandem.contract.engine import Capabilities
from tandem.engines import kinds
from tandem.engines.checkpoint_files import kv_bytes_per_token
from tandem.engines.llamacpp.settings import GGUF_FILE, KV_ITEM_BYTES, LlamaCppSettings
from tandem.tools.profiles.checkpoint import Checkpoint, read_checkpoint_config
from tandem.tools.profiles.engines.base import (
    SEQUENCES_CACHED,
    CheckpointSection,
    EnginePlan,
    Folder,
    ProfileError,
    copied_settings,
)

CHECKPOINT = "checkpoint"  # folder next to model.py
KV_BYTES = 2**28  # default size of the KV cache, unless one whole sequence needs more


class LlamaCppDraft(CheckpointSection):
    """A llamacpp engine, which runs a GGUF file on llama.cpp."""

    default_max_seq_len = 4096

    kind: Literal["llamacpp"]
    checkpoint: Folder
    """Folder with `model.gguf`, `config.json` and the tokenizer. `tandem up --target FILE.gguf`
    makes one in `~/.cache/tandem/gguf`."""
    threads: NonNegativeInt = LlamaCppSettings.threads
    """Number of threads; 0: one per core."""
    n_gpu_layers: Annotated[int, Field(ge=-1)] = LlamaCppSettings.n_gpu_layers
    """Number of layers on a GPU; -1: all. Needs a build of xllamacpp for the GPU."""
    max_seq_len: PositiveInt | None = None
    """Tokens of prompt, output and longest draft together (default: the model's maximum, up to
    4096)."""
    kv_cache_tokens: PositiveInt | None = None
    """Tokens in the KV cache (default: 16 whole sequences or 256 MiB, at least one sequence)."""
    kv_block_tokens: PositiveInt = LlamaCppSettings.kv_block_tokens
    """Unit in which the KV cache is counted, in tokens."""
    max_batch_tokens: PositiveInt = LlamaCppSettings.max_batch_tokens
    """Tokens in one forward pass."""

    @property
    def devices(self) -> frozenset[str]:
        return frozenset({"cuda:0"} if self.n_gpu_layers else {"cpu"})

    def capabilities_of(self, settings: LlamaCppSettings) -> Capabilities:  # noqa: ARG002
        return kinds.LLAMACPP

    def default_kv_cache(self, max_seq_len: int) -> int:
        config = read_checkpoint_config(self.checkpoint)
        affordable = KV_BYTES // max(kv_bytes_per_token(config.get, KV_ITEM_BYTES), 1)
        return max(max_seq_len, min(SEQUENCES_CACHED * max_seq_len, affordable))

    def plan(self) -> EnginePlan:
        planned = super().plan()
        return replace(planned, files={CHECKPOINT: [self.checkpoint / GGUF_FILE], **planned.files})

    def check_weights(self) -> None:
        if not (self.checkpoint / GGUF_FILE).is_file():
            raise ProfileError(("checkpoint",), f"{self.checkpoint} has no {GGUF_FILE}")

    def settings(self, _: Checkpoint, /, **decided: Any) -> LlamaCppSettings:
        return copied_settings(self, LlamaCppSettings, checkpoint=CHECKPOINT, **decided)


class LlamaCppTarget(LlamaCppDraft):
    """A llamacpp engine that verifies drafts."""

    max_draft_len: NonNegativeInt = 16
    """Target only: maximum draft tokens per verification."""
