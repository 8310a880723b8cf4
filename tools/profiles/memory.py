"""How much memory this machine can still give, and whether a deployment's models fit into it."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # of version 2; what a container sees is its own


def free_memory() -> int:
    """Return the bytes that a new process can have, a container's limit included."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())
    free = int(available.group(1)) * 1024 if available else 0
    limited = _left_by_limit()
    return free if limited is None else min(free, limited)


def _left_by_limit() -> int | None:
    """Return what the limit of this control group leaves; None where there is none."""
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
