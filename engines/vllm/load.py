"""Start a vLLM engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings


def load(model_config: dict[str, Any], _folder: Path) -> VllmEngine:
    """Start vLLM with the settings of a model. Raises LoadError or ParameterError."""
    return VllmEngine(decode(VllmSettings, model_config))
