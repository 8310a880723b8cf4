"""Start an emulated engine in its own process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.emulated.engine import EmulatedEngine
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.emulated.timers import WallTimer


def load(model_config: dict[str, Any], folder: Path) -> EmulatedEngine:  # noqa: ARG001
    """Start the engine. Raises LoadError or ParameterError.

    This sets Python's thread switch interval to 0.1 ms instead of 5 ms, so that a due step doesn't
    wait while another call's tensors are read.
    """
    sys.setswitchinterval(1e-4)
    return EmulatedEngine(decode(EmulatedSettings, model_config), WallTimer())
