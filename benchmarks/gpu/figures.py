"""Logs results immediately, and continues after a failed measurement."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

log = logging.getLogger(__name__)


class FigureLog:
    """Prints each result and appends it to a file, so that an aborted run keeps its results."""

    def __init__(self, file: Path | None) -> None:
        self.num_failed = 0
        self._file = file
        self._console = Console(highlight=False, soft_wrap=True)
        if file:
            file.write_text("")

    def head(self, device: torch.device, **facts: object) -> None:
        """Record a description of the machine."""
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
        self.add(
            "machine",
            gpu=gpu,
            cores=os.cpu_count(),
            python=platform.python_version(),
            torch=torch.__version__,
            **facts,
        )

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """Run a measurement. If it fails, record its error."""
        try:
            measure()
        except Exception as error:
            log.exception("%s failed", name)
            self.num_failed += 1
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.add(f"failed: {name}", error=line)

    def add(self, name: str, **figures: object) -> None:
        """Record results under a name."""
        self.num_failed += bool(figures.get("wrong"))
        shown = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in figures.items()}
        self._console.print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps({"name": name, **figures}, default=str) + "\n")
