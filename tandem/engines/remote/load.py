"""Connect to a remote engine from a model's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.remote.engine import RemoteEngine
from tandem.engines.remote.settings import RemoteSettings


def load(model_config: dict[str, Any], folder: Path) -> RemoteEngine:  # noqa: ARG001
    """Connect to the replicas. Raises LoadError if one of them serves a different model."""
    return RemoteEngine(decode(RemoteSettings, model_config))
