"""Where a model comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tandem.tools.models.weights import count_parameters


@dataclass(frozen=True)
class Description:
    """What is known of a model before anything large is fetched or loaded.

    folder: holds its configuration and tokenizer. num_parameters: numbers in its weights.
    missing_bytes: what is still to be fetched.
    """

    folder: Path
    num_parameters: int
    missing_bytes: int = 0


class ModelSource(ABC):
    """A model that somebody named."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What to call it."""

    @abstractmethod
    def describe(self) -> Description:
        """Say what can be known before its weights are here; raise TandemError."""

    @abstractmethod
    def checkpoint(self) -> Path:
        """Return the folder of the whole checkpoint, fetched if need be; raise TandemError."""


@dataclass(frozen=True)
class CheckpointFolder(ModelSource):
    """A checkpoint's folder on this machine."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.absolute().name

    def describe(self) -> Description:
        return Description(self.path, count_parameters(self.path))

    def checkpoint(self) -> Path:
        return self.path
