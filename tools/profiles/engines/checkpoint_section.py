"""The base class of profile sections for engines that run a Hugging Face checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt

from tandem.contract.capabilities import Capabilities
from tandem.engines.lora_files import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config
from tandem.tools.profiles.checkpoint import Checkpoint, read_checkpoint
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    EngineSection,
    Folder,
    LoraAdapters,
    ProfileError,
    check_kv_cache,
    locate_errors,
    parameters_of,
)

SEQUENCES_CACHED = 16  # whole sequences in the KV cache by default


class CheckpointSection(EngineSection):
    """A profile's section for an engine that runs a Hugging Face checkpoint.

    default_max_seq_len: default of max_seq_len, unless the checkpoint has fewer positions.
    """

    default_max_seq_len: ClassVar[int] = 8192

    kind: str
    checkpoint: Folder
    max_seq_len: PositiveInt | None = None
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: int = 32
    lora_adapters: LoraAdapters | None = None
    """LoRA adapters: the name and PEFT folder of each. The draft's names must be among the target's
    (default: none)."""
    exclude_input_in_output: bool = True
    """Omit the input from the output in direct calls to the engine."""

    @abstractmethod
    def settings(self, checkpoint: Checkpoint, /, **decided: Any) -> Any:
        """Return the engine's settings.

        decided: max_seq_len, kv_cache_tokens and lora_adapters. Raises ProfileError or LoadError.
        """

    @abstractmethod
    def capabilities_of(self, settings: Any) -> Capabilities:
        """Return the capabilities of the engine with these settings."""

    def default_kv_cache(self, max_seq_len: int) -> int:
        """Return the default size of the KV cache in tokens."""
        return SEQUENCES_CACHED * max_seq_len

    def check_adapter(self, folder: Path) -> None:
        """Raise LoadError if the engine can't apply a LoRA adapter."""
        read_adapter_config(folder)

    @property
    def tokenizer_folder(self) -> Path:
        return self.checkpoint

    def plan(self) -> EnginePlan:
        with locate_errors("checkpoint"):
            checkpoint = read_checkpoint(self.checkpoint)
        reach = checkpoint.max_positions
        default = self.default_max_seq_len
        length = self.max_seq_len or min(reach or default, default)
        if reach is not None and length > reach:
            raise ProfileError(
                ("max_seq_len",),
                f"must be at most {reach}, the positions of {checkpoint.folder}; got {length}",
            )
        cache = self.kv_cache_tokens or self.default_kv_cache(length)
        check_kv_cache(cache, length, "kv_cache_tokens")
        adapters = self.lora_adapters or {}
        subfolders = tuple(f"lora-{number}" for number in range(1, len(adapters) + 1))
        settings = self.settings(
            checkpoint, max_seq_len=length, kv_cache_tokens=cache, lora_adapters=subfolders
        )
        files = {}
        for subfolder, (name, folder) in zip(subfolders, adapters.items(), strict=True):
            with locate_errors("lora_adapters", name):
                self.check_adapter(folder)
            files[subfolder] = [folder / WEIGHTS_FILE, folder / CONFIG_FILE]
        capabilities = self.capabilities_of(settings)
        return EnginePlan(
            capabilities=capabilities,
            parameters=parameters_of(
                settings, self.kind, excludes_input=self.exclude_input_in_output
            ),
            excludes_input=self.exclude_input_in_output,
            vocab_size=checkpoint.vocab_size,
            max_seq_len=settings.max_seq_len,
            kv_cache_tokens=cache,
            kv_block_tokens=self.kv_block_tokens,
            max_draft_len=0 if capabilities.drafts_itself else settings.max_draft_len,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
            decoupled=self.decoupled,
            files=files,
            lora_adapters=tuple(adapters),
        )
