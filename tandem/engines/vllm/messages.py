"""Messages between the engine and vLLM's process, pickled by `multiprocessing.connection`.

The engine sends its `VllmSettings`, then a `Submit` or `Stop` per call, and None at the end. The
process sends `Ready`, then `Stepped` after each step, or an `EngineError` before it ends.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem.engines.engine import EngineRequest, EngineResponse


class Submit(NamedTuple):
    """Start a call. key: its number."""

    key: int
    request: EngineRequest


class Stop(NamedTuple):
    """End a call."""

    key: int


class Ready(NamedTuple):
    """vLLM has started."""

    version: str


class Stepped(NamedTuple):
    """Answers, keyed by call number. steps: number of vLLM's forward passes since the start."""

    steps: int
    answers: list[tuple[int, EngineResponse]]
