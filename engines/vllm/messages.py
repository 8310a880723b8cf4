"""Messages between the engine and vLLM's process, pickled by `multiprocessing.connection`.

The engine sends its `VllmSettings`, then a `Submit` or `Stop` for each call, and None at the end.
The process sends `Ready`, then `Stepped`, or an `EngineError` before it ends.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem.engines.request import EngineRequest, EngineResponse


class Submit(NamedTuple):
    """A call to start; key: its number."""

    key: int
    request: EngineRequest


class Stop(NamedTuple):
    """The call to end."""

    key: int


class Ready(NamedTuple):
    """vLLM has started."""

    version: str


class Stepped(NamedTuple):
    """Answers, keyed by call number. steps: vLLM's forward passes since the start."""

    steps: int
    answers: list[tuple[int, EngineResponse]]
