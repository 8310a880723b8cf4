"""Start a vLLM engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings

SECONDS_TO_ANSWER = 1.0


def load(model_config: dict[str, Any], _folder: Path) -> VllmEngine:
    """Start vLLM with a model's settings. Raises LoadError or ParameterError."""
    return VllmEngine(decode(VllmSettings, model_config), on_death=_end_process)


def _end_process() -> None:
    """End this model's process, so that `tandem up` ends and its supervisor restarts it."""
    time.sleep(SECONDS_TO_ANSWER)  # time for Triton to take the errors of the last calls
    os._exit(1)
