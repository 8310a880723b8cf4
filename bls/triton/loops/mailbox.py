"""Messages between processes on one machine.

A mailbox is a datagram socket in Linux's abstract namespace. It disappears with its process, so it
leaves no file.
"""

from __future__ import annotations

import errno
import queue
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from tandem.bls.triton.background import log_exception, run_in_background

# The system buffers about ten messages for a process that doesn't read. Sending another message
# then blocks for this time, and the message is dropped.
SEND_TIMEOUT = 0.2
MESSAGE_BYTES = 2**16


class Mailbox:
    """Receives lines, and sends lines to other mailboxes. Thread-safe.

    address: name of the socket, which begins with a zero byte. Raises AddressTaken.
    """

    def __init__(self, address: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sending.settimeout(SEND_TIMEOUT)
        self._unsent: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closed = False
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            self._sending.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken from error
            raise

    def open(
        self, receive: Callable[[list[str]], None], addresses: Callable[[], Iterable[bytes]]
    ) -> None:
        """Start the threads that receive lines and send queued lines to all ``addresses``."""
        run_in_background(lambda: self._receive(receive))
        run_in_background(lambda: self._send(addresses))

    def put(self, line: str) -> None:
        """Queue a line to send. Doesn't block."""
        self._unsent.put(line)

    def close(self) -> None:
        """Send the queued lines, then end both threads."""
        self._closed = True
        self._unsent.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, receive: Callable[[list[str]], None]) -> None:
        while (message := self._socket.recv(MESSAGE_BYTES)) or not self._closed:
            try:
                receive(message.decode().splitlines())
            except Exception as error:  # noqa: BLE001  the next message must still be read
                log_exception("failed to handle a message of another loop", error)
        self._socket.close()

    def _send(self, addresses: Callable[[], Iterable[bytes]]) -> None:
        while (lines := self._next()) is not None:
            message = "\n".join(dict.fromkeys(lines)).encode()
            for address in addresses():
                with suppress(OSError):  # the other process has ended or doesn't read
                    self._sending.sendto(message, address)
        self._sending.close()

    def _next(self) -> list[str] | None:
        """Wait for lines. Return as many as fit into one message, or None after ``close``."""
        lines: list[str] = []
        size = 0
        while size < MESSAGE_BYTES // 2:
            try:
                line = self._unsent.get(block=not lines)
            except queue.Empty:
                break
            if line is None:
                if lines:
                    self._unsent.put(None)
                    break
                return None
            lines.append(line)
            size += len(line)
        return lines


class AddressTaken(Exception):
    """The address belongs to another mailbox."""
