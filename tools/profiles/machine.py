"""Reports the free memory of this machine, and the GPUs that PyTorch sees."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # cgroup v2; in a container, its own control group


def free_memory() -> int:
    """Return the bytes that a new process can allocate within the container's limit."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())
    free = int(available.group(1)) * 1024 if available else 0
    limited = _memory_below_limit()
    return free if limited is None else min(free, limited)


def _memory_below_limit() -> int | None:
    """Return the bytes left under the control group's memory limit, or None without a limit."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        statistics = (CGROUP / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max":
        return None
    files = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    return max(int(limit) - used + (int(files.group(1)) if files else 0), 0)


def count_gpus() -> int:
    return next(iter(_ask_torch("torch.cuda.device_count()")), 0)


def free_gpu_memory(fraction: float) -> int | None:
    """Return the bytes that a new process can allocate on the first GPU, or None without a GPU.

    fraction: the maximum share of the GPU's memory in use, including other processes.
    """
    memory = _ask_torch("*torch.cuda.mem_get_info() if torch.cuda.is_available() else ()")
    if not memory:
        return None
    free, total = memory
    return max(0, int(fraction * total) - (total - free))


def _ask_torch(question: str) -> list[int]:
    """Return the numbers that a PyTorch expression yields.

    Evaluates it in a separate process, because importing PyTorch takes seconds and memory.
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
