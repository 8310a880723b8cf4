"""Start a llamacpp engine in its own process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.contract.model_parameters import decode
from tandem.engines.errors import LoadError
from tandem.engines.llamacpp.settings import LlamaCppSettings

if TYPE_CHECKING:
    from tandem.engines.llamacpp.engine import LlamaCppEngine


# Threads wait for each other after each operation. GCC's OpenMP checks in a loop for milliseconds
# before a thread sleeps, so on a busy machine, waiting threads take the cores that the others need.
SPIN_COUNT = "300"


def load(model_config: dict[str, Any], folder: Path) -> LlamaCppEngine:
    """Load the GGUF file and start the engine. Raises LoadError or ParameterError."""
    settings = decode(LlamaCppSettings, model_config)
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when the library is loaded
    try:
        from tandem.engines.llamacpp.engine import LlamaCppEngine  # noqa: PLC0415
    except ImportError as error:
        raise LoadError(
            f"can't run llama.cpp: {error}; install Tandem with the extra 'gguf'"
        ) from error
    return LlamaCppEngine(settings, folder)
