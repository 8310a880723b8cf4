"""How many GPUs the torch engines of this machine can use."""

from __future__ import annotations

import shutil
import subprocess
import sys

QUESTION = "import torch; print(torch.cuda.device_count())"


def count_gpus() -> int:
    """Return how many GPUs PyTorch sees.

    It is asked in a process of its own, importing it takes seconds and memory; not at all where
    there is no driver.
    """
    if shutil.which("nvidia-smi") is None:
        return 0
    asked = subprocess.run(
        [sys.executable, "-c", QUESTION], capture_output=True, text=True, check=False
    )
    return int(asked.stdout) if asked.returncode == 0 else 0
