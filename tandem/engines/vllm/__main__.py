"""The process that runs vLLM: `python -m tandem.engines.vllm DESCRIPTOR`.

It reads `VllmSettings`, then `Submit` and `Stop` messages from a socket. It runs vLLM's steps one
after another and sends the results of each. It exits when the other end closes the socket. After an
error, it sends the error and exits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from multiprocessing.connection import Connection

from tandem.engines.errors import EndedError, EngineError, LoadError, first_line
from tandem.engines.vllm.hooks import TESTED
from tandem.engines.vllm.settings import VllmSettings

log = logging.getLogger("tandem.engines.vllm")


def serve(connection: Connection) -> None:
    """Serve calls until the engine closes the connection. Raises EngineError with one line."""
    settings: VllmSettings = connection.recv()
    try:
        from tandem.engines.vllm.messages import Ready  # noqa: PLC0415
        from tandem.engines.vllm.worker import VllmWorker  # noqa: PLC0415
    except ImportError as error:
        raise LoadError(
            f"{settings.python} can't import vLLM: {first_line(error)}; install vLLM "
            f"{' or '.join(TESTED)} there"
        ) from error
    try:
        worker = VllmWorker(settings)
    except LoadError:
        raise
    except Exception as error:
        log.exception("vLLM can't start")
        raise LoadError(f"vLLM can't start: {first_line(error)}") from error
    connection.send(Ready(worker.version))
    try:
        worker.serve(connection)
    except (EOFError, ConnectionError):
        return  # the engine has ended
    except Exception as error:
        log.exception("vLLM failed")
        raise EndedError(f"vLLM failed: {first_line(error)}") from error


def main() -> None:
    connection, status = Connection(int(sys.argv[1])), 0
    try:
        serve(connection)
    except EngineError as error:
        status = 1
        with contextlib.suppress(OSError):
            connection.send(error)
    # Exit without waiting for vLLM's threads and finalizers, which could keep the process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
