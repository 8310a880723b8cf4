"""The machine that results come from."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    question = [program, "--query-gpu=name", "--format=csv,noheader"]
    answered = subprocess.run(question, capture_output=True, text=True, check=False)
    return answered.stdout.splitlines() if answered.returncode == 0 else []
