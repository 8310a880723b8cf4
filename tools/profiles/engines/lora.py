"""The LoRA adapters in an engine's section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tandem.engines.lora_files import CONFIG_FILE, WEIGHTS_FILE, read_config
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    Folder,
    KeyPath,
    OwnEngineSection,
    located,
)

LoraAdapters = Mapping[Annotated[str, Field(min_length=1)], Folder]


class AdaptedSection(OwnEngineSection):
    """A profile's section for an engine that applies LoRA adapters."""

    lora_adapters: LoraAdapters | None = None
    """LoRA adapters: the name and PEFT folder of each. The draft's names must be names of the
    target's (default: none)."""

    @property
    def lora_folders(self) -> tuple[str, ...]:
        """Subfolders of the model's version folder, one per adapter."""
        return tuple(f"lora-{number}" for number in range(1, len(self.lora_adapters or ()) + 1))

    def with_adapters(
        self, planned: EnginePlan, key_path: KeyPath, read: Callable[[Path], object] = read_config
    ) -> EnginePlan:
        """Return the plan with the adapters' names and files.

        read: function that raises LoadError if the engine can't apply an adapter. Raises
        ProfileError.
        """
        adapters, files = self.lora_adapters or {}, dict(planned.files)
        for subfolder, (name, folder) in zip(self.lora_folders, adapters.items(), strict=True):
            with located(*key_path, "lora_adapters", name):
                read(folder)
            files[subfolder] = [folder / WEIGHTS_FILE, folder / CONFIG_FILE]
        return replace(planned, files=files, lora_adapters=tuple(adapters))
