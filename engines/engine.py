"""The interface of all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tandem.contract.capabilities import Capabilities
from tandem.engines.request import EngineRequest, EngineResponse

Respond: TypeAlias = Callable[[EngineResponse], None]
Send: TypeAlias = Callable[[int], None]  # argument: time of the last token, in ns of the wall clock


class Preparing(ABC):
    """A `Respond` that can do everything but the sending in advance."""

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
    """Answers many calls at once. All methods may be called from any thread.

    Attributes:
        capabilities: capabilities of this kind of engine.
        computed_tokens: tokens that went through the model since the start.

    """

    capabilities: Capabilities
    computed_tokens: int

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        """Start a call. `respond` gets its answers from any thread; the last one is marked final.

        Raises RequestError, before any answer, for a call that cannot be served.
        """

    def stop(self, request_id: str) -> None:
        """End the call with that id, if it runs; its final answer comes within a step."""

    def close(self) -> None: ...
