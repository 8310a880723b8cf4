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
# lose: the call is never answered. slow, late: the answer is delayed by 0.02 s or by 0.6 s. Faults
# with "once" affect only one call. Tokenizers support only raise and hold.
Fault = Literal["raise", "raise once", "leave", "hold", "lose once", "slow", "late"]


def plant(models: Path) -> None:
    """Wrap every engine and tokenizer of a rendered repository, so that faults can be injected."""
    for name in (*ENGINES, *TOKENIZERS):
        version = models / name / "1"
        (version / "model.py").rename(version / "real_model.py")
        kind = "engine.py" if name in ENGINES else "tokenizer.py"
        shutil.copyfile(HERE / kind, version / "model.py")


class Faults:
    """Controls the faults of a server's models, through files in the models' folders."""

    def __init__(self, models: Path) -> None:
        self._models = models

    @contextmanager
    def inject(self, model: str, fault: Fault) -> Iterator[None]:
        """Inject a fault into a model within the context."""
        self.begin(model, fault)
        try:
            yield
        finally:
            self.end(model)

    def begin(self, model: str, fault: Fault) -> None:
        """Inject a fault into a model until ``end`` is called."""
        unfinished = self.file(model).with_suffix(".new")
        unfinished.write_text(fault)
        unfinished.rename(self.file(model))  # atomic, so that no call reads half a file

    def end(self, model: str) -> None:
        self.file(model).unlink(missing_ok=True)

    def file(self, model: str) -> Path:
        return self._models / model / "1" / "fault"
