"""Start a vLLM engine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings

SECONDS_TO_ANSWER = 1.0


def load(model_config: dict[str, Any], folder: Path) -> VllmEngine:
    """Start vLLM with a model's settings. Raises LoadError or ParameterError."""
    settings = decode(VllmSettings, model_config)
    adapters = tuple(str(folder / name) for name in settings.lora_adapters)
    return VllmEngine(replace(settings, lora_adapters=adapters), on_death=_end_process)


def _end_process() -> None:
    """End this model's process, so that `tandem up` ends and its supervisor restarts it."""
    time.sleep(SECONDS_TO_ANSWER)  # time for Triton to take the errors of the last calls
    os._exit(1)
