"""The interface that all engines implement."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tandem.contract.capabilities import Capabilities
from tandem.engines.request import EngineRequest, EngineResponse

Respond: TypeAlias = Callable[[EngineResponse], None]
log = logging.getLogger(__name__)


def deliver(respond: Respond, answer: EngineResponse) -> bool:
    """Deliver an answer. Return whether that succeeded; log the error if not."""
    try:
        respond(answer)
    except Exception:
        log.exception("failed to deliver an answer")
        return False
    return True


class Engine(Protocol):
    """Serves many calls concurrently. All methods may be called from any thread.

    Attributes:
        capabilities: capabilities of this kind of engine.
        computed_tokens: number of tokens that went through the model since the engine started.

    """

    capabilities: Capabilities
    computed_tokens: int

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        """Start a call. `respond` gets its answers, from any thread; the last one is marked final.

        Raises RequestError before any answer if the call cannot be served.
        """

    def stop(self, request_id: str) -> None:
        """End the running call with this id, if any. Its final answer comes within one step."""

    def close(self) -> None: ...
