"""What PyTorch sees of this machine's GPUs."""

from __future__ import annotations

import shutil
import subprocess
import sys

COUNT = "torch.cuda.device_count()"
MEMORY = "*torch.cuda.mem_get_info() if torch.cuda.is_available() else ()"


def count_gpus() -> int:
    return next(iter(_asked(COUNT)), 0)


def free_gpu_memory(fraction: float) -> int | None:
    """Return the bytes that are free on the GPU that they take; None where there is none.

    fraction: of all its memory, what may be taken, by others too.
    """
    memory = _asked(MEMORY)
    if not memory:
        return None
    free, total = memory
    return max(0, int(fraction * total) - (total - free))


def _asked(question: str) -> list[int]:
    """Ask PyTorch in a process of its own: importing it takes seconds and memory.

    It is not asked at all where there is no driver.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(
        [sys.executable, "-c", f"import torch; print({question})"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(number) for number in asked.stdout.split()] if asked.returncode == 0 else []
