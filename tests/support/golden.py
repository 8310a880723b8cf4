"""Compares texts with files in tests/tools/golden."""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "tools" / "golden"


def check_golden(name: str, text: str) -> None:
    """Compare a text with tests/tools/golden/NAME. If WRITE_GOLDEN is set, write the file first."""
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
