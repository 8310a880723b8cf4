"""The model.py of a tokenizer model that can fail: it checks for a fault first."""

import time
from pathlib import Path

from real_model import TritonPythonModel as RealModel

FAULT = Path(__file__).parent / "fault"


class TritonPythonModel(RealModel):
    """What Triton's Python backend looks for."""

    def execute(self, requests: list) -> list:
        """Fail if a fault is set, or answer."""
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
