"""Wraps the real models so that they fail on demand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
ENGINES = ("draft", "target")
TOKENIZERS = ("preprocessing", "postprocessing")

# raise: the call fails. leave: the engine shuts down. hold: the call waits until the fault is over.
# lose: it is never answered. late: its answer comes 0.6 s later than it could. The "once" ones
# strike one call only. Tokenizers know raise and hold.
Fault = Literal["raise", "raise once", "leave", "hold", "lose once", "late"]


def plant(models: Path) -> None:
    """Replace every engine and tokenizer of a rendered repository with one that can fail."""
    for name in (*ENGINES, *TOKENIZERS):
        version = models / name / "1"
        (version / "model.py").rename(version / "real_model.py")
        kind = "engine.py" if name in ENGINES else "tokenizer.py"
        shutil.copyfile(HERE / kind, version / "model.py")


class Faults:
    """Controls the faults of one server's models through files next to them."""

    def __init__(self, models: Path) -> None:
        self._models = models

    @contextmanager
    def of(self, model: str, fault: Fault) -> Iterator[None]:
        """Inject a fault into a model within the context."""
        self.begin(model, fault)
        try:
            yield
        finally:
            self.end(model)

    def begin(self, model: str, fault: Fault) -> None:
        """Inject a fault into a model until ``end`` is called."""
        unfinished = self._file(model).with_suffix(".new")
        unfinished.write_text(fault)
        unfinished.rename(self._file(model))  # a call sees all of it or nothing

    def end(self, model: str) -> None:
        """End a model's fault."""
        self._file(model).unlink(missing_ok=True)

    def _file(self, model: str) -> Path:
        return self._models / model / "1" / "fault"
