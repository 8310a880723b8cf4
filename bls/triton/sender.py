"""The way back to a client.

Triton 2.51 frees what belongs to a request when its final response is sent, and asking afterwards
whether it was cancelled crashes the whole server; a question that overlaps the final response does
too. So questions and responses take turns here, and after the final response there are none.
"""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils


class Sender:
    """Sends the responses to one request. Thread-safe; after the final one it does nothing."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    def is_cancelled(self) -> bool:
        """Whether the client has gone; False once everything has been said."""
        with self._lock:
            return not self._closed and self._sender.is_cancelled()

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response; the final flag goes with the last one, never alone behind it."""
        with self._lock:
            if self._closed:
                return
            self._closed = final
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            self._sender.send(response, flags=flags)

    def refuse(self, reason: str) -> None:
        """Send one line instead of an answer."""
        error = pb_utils.TritonError(reason)
        self.send(pb_utils.InferenceResponse(error=error), final=True)

    def close(self) -> None:
        """End without a word: for a call that asks for nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
