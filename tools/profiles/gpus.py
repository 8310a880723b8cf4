"""What PyTorch sees of this machine's GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys

COUNT = "torch.cuda.device_count()"
FREE = "torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else ''"


def count_gpus() -> int:
    """Return how many GPUs the torch engines can use."""
    return _asked(COUNT) or 0


def free_gpu_memory() -> int | None:
    """Return the bytes that are free on the GPU that they take; None where there is none."""
    return _asked(FREE)


def _asked(question: str) -> int | None:
    """Ask PyTorch in a process of its own: importing it takes seconds and memory.

    It is not asked at all where there is no driver.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    asked = subprocess.run(
        [sys.executable, "-c", f"import torch; print({question})"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else None
