"""The model.py of a tokenizer model that can fail: it checks for a fault before each call."""

import time
from pathlib import Path
from typing import Any

from real_model import TritonPythonModel as RealModel

FAULT = Path(__file__).parent / "fault"


class TritonPythonModel(RealModel):
    """The class that Triton's Python backend loads."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Apply the fault if one is set, otherwise answer."""
        while (fault := _read()) == "hold":
            time.sleep(0.01)
        if fault == "raise":
            raise RuntimeError("a planted fault")
        return super().execute(requests)


def _read() -> str:
    try:
        return FAULT.read_text()
    except FileNotFoundError:
        return ""
