"""The interface that all engines implement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from tandem.contract.capabilities import Capabilities
from tandem.contract.errors import ErrorCode
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


@dataclass(frozen=True)
class ForwardedCall:
    """A call as tensors, with batch dimension.

    outputs: names of the wanted outputs. timeout: seconds until the call fails; 0: no limit.
    Either `respond` or `fail` is called once, from any thread. fail: called with a message, a code
    and the name of the input that is wrong, or "".
    """

    arrays: Mapping[str, NDArray[Any]]
    outputs: Sequence[str]
    request_id: str
    timeout: float
    respond: Callable[[Mapping[str, NDArray[Any]]], None]
    fail: Callable[[str, ErrorCode, str], None]


@runtime_checkable
class Forwarder(Protocol):
    """Forwards the tensors of calls to an engine elsewhere. For `stop` and `close`, see `Engine`.

    Attributes:
        computed_tokens: number of tokens that went through the model in this process.

    """

    computed_tokens: int

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of calls, by replica and outcome (`ok`, `failed`)."""

    def forward(self, call: ForwardedCall) -> None: ...

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...
