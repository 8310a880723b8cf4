"""A Hugging Face checkpoint on PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tandem.engines import capabilities
from tandem.engines.errors import LoadError
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.profiles.architecture import why_unsupported
from tandem.tools.profiles.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_files,
    read_checkpoint,
    read_config,
    require_weights,
)
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    Folder,
    KeyPath,
    OwnEngineSection,
    ProfileError,
    sequence_length,
)
from tandem.tools.profiles.engines.lookup import LookupSection

CHECKPOINT = "checkpoint"  # folder beside model.py
SEQUENCES_CACHED = 16  # what a KV cache holds where the profile does not say, if memory allows
KV_BYTES = 2**30
MAX_SEQ_LEN = 4096


class TorchDraft(OwnEngineSection):
    """A Hugging Face checkpoint on PyTorch.

    checkpoint: its folder. max_seq_len: tokens of context, answer and draft together; what the
    checkpoint allows, at most 4096, when left out. kv_cache_tokens: cap of the KV cache; when left
    out, 16 whole sequences or what a gigabyte holds. max_batch_tokens: tokens in one forward pass.
    threads: of PyTorch; 0 is its own choice.
    """

    kind: Literal["torch"] = "torch"
    checkpoint: Folder
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: NonNegativeInt = 0
    max_seq_len: PositiveInt | None = None
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: PositiveInt = 32
    max_batch_tokens: PositiveInt = 512
    paged_kv_cache: bool = False
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9

    @property
    def tokenizer_folder(self) -> Path:
        return self.checkpoint

    @property
    def devices(self) -> frozenset[str]:
        """The CPU or a GPU; `auto` may be the CPU or the first GPU, where there is one."""
        either = {"auto": {"cpu", "cuda:0"}, "cuda": {"cuda:0"}}
        return frozenset(either.get(self.device, {self.device}))

    def plan(self, key_path: KeyPath) -> EnginePlan:
        try:
            checkpoint = read_checkpoint(self.checkpoint, with_weights=False)
            fault = why_unsupported(read_config(self.checkpoint))
        except CheckpointError as error:
            raise ProfileError((*key_path, "checkpoint"), str(error)) from error
        if fault:
            raise ProfileError((*key_path, "checkpoint"), f"{self.checkpoint}: {fault}")
        settings = self._settings(checkpoint, key_path)
        return EnginePlan(
            capabilities=capabilities.TORCH_LOOKUP
            if settings.drafts_itself
            else capabilities.TORCH,
            parameters=self.model_parameters(self.kind, settings),
            excludes_input=self.exclude_input_in_output,
            vocab_size=checkpoint.vocab_size,
            max_seq_len=settings.max_seq_len,
            kv_cache_tokens=settings.kv_cache_tokens,
            kv_block_tokens=settings.kv_block_tokens,
            max_draft_len=0 if settings.drafts_itself else settings.max_draft_len,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
            decoupled=self.decoupled,
            files={CHECKPOINT: checkpoint_files(checkpoint.folder)},
        )

    def check_weights(self, key_path: KeyPath) -> None:
        try:
            require_weights(self.checkpoint)
        except CheckpointError as error:
            raise ProfileError((*key_path, "checkpoint"), str(error)) from error

    @property
    def _longest_draft(self) -> int:
        return 0

    @property
    def _lookup(self) -> dict[str, Any]:
        return {}

    def _settings(self, checkpoint: Checkpoint, key_path: KeyPath) -> TorchSettings:
        length = self._length(checkpoint, key_path)
        cache = self.kv_cache_tokens or _default_cache(checkpoint, length)
        if cache < length:
            raise ProfileError(
                (*key_path, "kv_cache_tokens"),
                f"{cache} is less than one sequence of max_seq_len {length}",
            )
        decided = {
            "kind",
            *OwnEngineSection.model_fields,
            "checkpoint",
            "max_seq_len",
            "kv_cache_tokens",
            "prompt_lookup",
        }
        given = {**self.model_dump(exclude=decided), **self._lookup}
        try:
            return TorchSettings(
                checkpoint=CHECKPOINT, max_seq_len=length, kv_cache_tokens=cache, **given
            )
        except LoadError as error:
            raise ProfileError(key_path, str(error)) from error

    def _length(self, checkpoint: Checkpoint, key_path: KeyPath) -> int:
        length = sequence_length(self.max_seq_len, checkpoint, key_path, most=MAX_SEQ_LEN)
        if self._longest_draft >= length - 1:
            raise ProfileError(
                (*key_path, "max_draft_len"),
                f"{self._longest_draft} leaves no room for text in max_seq_len {length}",
            )
        return length


class TorchTarget(TorchDraft):
    """One that verifies drafts, of up to max_draft_len tokens.

    prompt_lookup: it makes them itself, inside one call (V2), and takes no others.
    """

    max_draft_len: NonNegativeInt = 16
    prompt_lookup: LookupSection | None = None

    def adjusted_to_draft(self, draft: EnginePlan, planned: EnginePlan) -> EnginePlan:
        """Pass on to the engine how wide the draft's logits are, where its padding differs."""
        if draft.vocab_size == planned.vocab_size:
            return planned
        width = {"draft_vocab_size": str(draft.vocab_size)}
        return replace(planned, parameters={**planned.parameters, **width})

    @property
    def _longest_draft(self) -> int:
        return self.max_draft_len

    @property
    def _lookup(self) -> dict[str, Any]:
        return self.prompt_lookup.settings if self.prompt_lookup else {}


def _default_cache(checkpoint: Checkpoint, max_seq_len: int) -> int:
    """Room for some whole sequences, in a gigabyte if that holds one."""
    affordable = KV_BYTES // max(checkpoint.kv_bytes_per_token, 1)
    return max(max_seq_len, min(SEQUENCES_CACHED * max_seq_len, affordable))
