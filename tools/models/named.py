"""Selects the source of a model by its name: a folder, a GGUF file or the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tandem.tools.errors import TandemError
from tandem.tools.models.gguf import GgufFile, is_gguf
from tandem.tools.models.hub import ID, HubModel
from tandem.tools.models.weights import Description, count_parameters


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint in a folder on this machine."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.absolute().name

    def describe(self) -> Description:
        return Description(self.path, count_parameters(self.path))

    def checkpoint(self) -> Path:
        return self.path


# `describe` reads the small files. `checkpoint` returns the folder of the complete checkpoint, and
# downloads or converts it first if necessary. Both raise TandemError.
ModelSource: TypeAlias = CheckpointFolder | GgufFile | HubModel


def model_named(text: str) -> ModelSource:
    """Return the model with this name; raise TandemError if there is none.

    A file or folder on this machine takes precedence over the Hub.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return CheckpointFolder(path)
    if path.is_file():
        if not is_gguf(path):
            raise TandemError(f"{path} is neither a checkpoint's folder nor a GGUF file")
        return GgufFile(path)
    if path.suffix == ".gguf":
        raise TandemError(f"no file {path}")
    given = ID.fullmatch(text)
    if given is None:
        raise TandemError(
            f"no folder {path}; Hugging Face Hub models are named OWNER/NAME or OWNER/NAME@REVISION"
        )
    return HubModel(given["id"], given["revision"])
