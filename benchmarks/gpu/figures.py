"""Figures as they come: a line on the terminal each, and one in a file."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import torch
from rich.console import Console


class FigureLog:
    """Says every figure at once, so that a run that is cut off leaves what it had."""

    def __init__(self, file: Path | None) -> None:
        self.num_failed = 0
        self._file = file
        self._console = Console(highlight=False, soft_wrap=True)
        if file:
            file.write_text("")

    def head(self, device: torch.device, **facts: object) -> None:
        """Say on which machine this is."""
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
        self.add(
            "machine",
            gpu=gpu,
            cores=os.cpu_count(),
            python=platform.python_version(),
            torch=torch.__version__,
            **facts,
        )

    def fail(self, name: str, error: Exception) -> None:
        """Say that something could not be measured."""
        self.num_failed += 1
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        self.add(f"failed: {name}", error=line)

    def add(self, name: str, **figures: object) -> None:
        """Say figures under a name."""
        shown = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in figures.items()}
        self._console.print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps({"name": name, **figures}, default=str) + "\n")
