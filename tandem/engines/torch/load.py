"""Start a torch engine in its own process."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.contract.model_parameters import decode
from tandem.engines.torch.settings import TorchSettings

if TYPE_CHECKING:
    from tandem.engines.torch.checkpoint import Loader
    from tandem.engines.torch.engine import TorchEngine


def load(
    model_config: dict[str, Any], folder: Path, load_model: Loader | None = None
) -> TorchEngine:
    """Load the checkpoint and start the engine. Raises LoadError or ParameterError.

    load_model: function that loads the model (default: `load_checkpoint`, which uses transformers).

    This imports PyTorch only after limiting how long OpenMP threads spin: no longer than the gaps
    within a forward pass. With longer spinning, an idle engine takes cores from a busy one.

    It also excludes imported objects from garbage collection. Otherwise, collections would make the
    start a tenth longer, and later pause all requests for 0.2 s at a time.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    gc.disable()
    from tandem.engines.torch.checkpoint import load_checkpoint  # noqa: PLC0415
    from tandem.engines.torch.engine import TorchEngine  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    settings = decode(TorchSettings, model_config)
    return TorchEngine(settings, folder, load_model or load_checkpoint)
