"""One client's connection, which has a minute to send each request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

NOTHING = object()
SECONDS_TO_ASK = 30.0  # looked at so often: who takes up to twice as long is cut off


class Connection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Closes when no whole request arrives in time.

    Uvicorn waits for ever for the first request, for the rest of a head and for the rest of a body:
    a thousand connections that send nothing take all of a process's descriptors.
    """

    _timer: asyncio.TimerHandle | None = None
    _waiting_for: Any = NOTHING  # the request that was last heard, while another one is awaited

    def connection_made(self, transport: Any) -> None:
        """Begin to look after it."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(SECONDS_TO_ASK, self._look)

    def _look(self) -> None:
        """Close it where it has been in the middle of the same request since the last look."""
        request = self.cycle
        if request is not None and not (request.response_complete or request.more_body):
            self._waiting_for = NOTHING  # it is being answered
        elif self._waiting_for is request:
            self.transport.close()
            return
        else:
            self._waiting_for = request
        self._look_later()
