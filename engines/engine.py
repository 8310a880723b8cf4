"""What every engine offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from engines.request import EngineAnswer, EngineRequest
from engines.traits import Traits

Respond: TypeAlias = Callable[[EngineAnswer], None]


class Engine(Protocol):
    """Answers many calls at once. All methods may be called from any thread.

    Attributes:
        traits: what it can do.
        computed_tokens: tokens that went through the model since the start.

    """

    traits: Traits
    computed_tokens: int

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        """Start a call; `respond` gets its answers, the last one marked final, from any thread.

        Raises RequestError, before any answer, for a call that cannot be served.
        """

    def stop(self, request_id: str) -> None:
        """End the call of that id, if there is one: it gets its final answer within a step."""

    def close(self) -> None:
        """End every call and the engine's threads."""
