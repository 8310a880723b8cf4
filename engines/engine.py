"""The interface that all engines implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tandem.contract.capabilities import Capabilities
from tandem.engines.request import EngineRequest, EngineResponse

Respond: TypeAlias = Callable[[EngineResponse], None]
Send: TypeAlias = Callable[[int], None]  # argument: system time of the last token, in ns


class Preparing(ABC):
    """A `Respond` that can prepare an answer in advance, so that only sending is left."""

    @abstractmethod
    def __call__(self, answer: EngineResponse) -> None: ...

    @abstractmethod
    def prepare(self, answer: EngineResponse) -> Send: ...


def prepared(respond: Respond, answer: EngineResponse) -> Send:
    if isinstance(respond, Preparing):
        return respond.prepare(answer)

    def send(last_token_ns: int) -> None:
        respond(answer._replace(usage=answer.usage._replace(last_token_time_ns=last_token_ns)))

    return send


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
