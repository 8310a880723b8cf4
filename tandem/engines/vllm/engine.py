"""The part of the vLLM engine that runs in Triton's process.

vLLM needs numpy 2, and the Python backend of Triton 2.51 needs numpy 1. So vLLM always runs in a
separate process, with its own Python. The engine starts `__main__` and communicates over a socket
pair.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import queue
import subprocess
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from tandem.engines.decoding import check
from tandem.engines.engine import EngineRequest, EngineResponse, Respond, deliver
from tandem.engines.errors import ClosingError, EndedError, EngineError, LoadError, first_line
from tandem.engines.kinds import VLLM, VLLM_SPECULATIVE
from tandem.engines.vllm.arguments import environment, reject_unsupported
from tandem.engines.vllm.messages import Ready, Stepped, Stop, Submit
from tandem.engines.vllm.settings import VllmSettings

PACKAGES = Path(__file__).parents[3]  # the folder that contains `tandem`
SECONDS_TO_END = 10.0
log = logging.getLogger(__name__)


class VllmEngine:
    """Serves a checkpoint with vLLM; see `engines.engine.Engine`.

    Attributes:
        steps: number of vLLM's forward passes since the start.

    """

    def __init__(self, settings: VllmSettings, on_death: Callable[[], None] = lambda: None) -> None:
        """Start vLLM and wait until it has loaded the checkpoint. Raises LoadError.

        on_death: called when vLLM's process has ended unexpectedly and all calls have failed.
        """
        self.capabilities = VLLM_SPECULATIVE if settings.drafts_itself else VLLM
        self.computed_tokens = 0
        self.steps = 0
        self._settings = settings
        self._on_death = on_death
        self._calls: dict[int, tuple[EngineRequest, Respond]] = {}
        self._keys = itertools.count()
        self._lock = threading.Lock()  # protects the calls; sending would block the delivery
        self._messages: queue.SimpleQueue[Submit | Stop | None] = queue.SimpleQueue()
        self._ended: EndedError | ClosingError | None = None
        self._connection, self._process = _start(settings)
        self._threads = [
            threading.Thread(target=work, name=f"vllm-{work.__name__}", daemon=True)
            for work in (self._send, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        settings = self._settings
        check(
            request,
            settings,
            settings.vocab_size,
            settings.draft_vocab_size,
            len(settings.lora_adapters),
        )
        reject_unsupported(request, drafts_itself=settings.drafts_itself)
        with self._lock:
            if self._ended:
                raise self._ended
            key = next(self._keys)
            self._calls[key] = request, respond
            self._messages.put(Submit(key, request))

    def stop(self, request_id: str) -> None:
        with self._lock:
            for key, (request, _) in self._calls.items():
                if request.request_id == request_id:
                    self._messages.put(Stop(key))

    def close(self) -> None:
        with self._lock:
            self._ended = self._ended or ClosingError()
            self._messages.put(None)
        _wait(self._process)
        for thread in self._threads:
            thread.join()
        self._connection.close()

    def _send(self) -> None:
        """Send messages until the last one, which is None.

        vLLM's process reads only between steps, so this can block for as long as a step.
        """
        with contextlib.suppress(OSError):  # vLLM's process has ended; `_read` fails the calls
            for message in iter(self._messages.get, None):
                self._connection.send(message)
            self._connection.send(None)

    def _read(self) -> None:
        """Deliver answers until vLLM's process ends, then fail the remaining calls."""
        failure: EngineError | None = None
        with contextlib.suppress(EOFError, OSError):
            while failure is None:
                received = self._connection.recv_bytes()
                try:
                    message: Stepped | EngineError = pickle.loads(received)
                    if isinstance(message, EngineError):
                        failure = message
                        continue
                    self.steps = message.steps
                    for key, answer in message.answers:
                        self._deliver(key, answer)
                except Exception as error:  # noqa: BLE001  unpickling can raise anything
                    self._process.kill()
                    failure = EndedError(f"vLLM sent an unreadable message: {first_line(error)}")
        status = _wait(self._process)
        with self._lock:
            died = self._ended is None
            if died:
                line = str(failure or f"vLLM's process ended with status {status}")
                self._ended = EndedError(line)
                log.error("%s; see its messages above for the reason. Restart the server.", line)
            keys, ended = list(self._calls), self._ended
        for key in keys:
            self._deliver(key, EngineResponse(error=str(ended), code="UNAVAILABLE"))
        if died:
            self._on_death()

    def _deliver(self, key: int, answer: EngineResponse) -> None:
        with self._lock:
            call = self._calls.pop(key, None) if answer.final else self._calls.get(key)
        if answer.final:
            self.computed_tokens += answer.usage.computed_tokens
        if call is not None and not deliver(call[1], answer) and not answer.final:
            with self._lock:
                self._calls.pop(key, None)  # the client gets no later response either
                self._messages.put(Stop(key))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait until vLLM's process has ended, or kill it. Return its status."""
    try:
        return process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _start(settings: VllmSettings) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start vLLM's process and wait until it is ready. Raises LoadError."""
    ours, theirs = Pipe()
    variables = {**environment(settings), **os.environ}
    variables |= {
        "PYTHONPATH": str(PACKAGES),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # this is a separate process already
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # V2 takes no drafts from a scheduler
    }
    try:
        process = subprocess.Popen(
            [settings.python, "-m", "tandem.engines.vllm", str(theirs.fileno())],
            env=variables,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    except OSError as error:
        raise LoadError(f"can't start vLLM with {settings.python}: {error.strerror}") from error
    theirs.close()
    try:
        ours.send(settings)
        message: Ready | EngineError = ours.recv()
    except (EOFError, OSError) as error:
        raise LoadError(
            f"vLLM's process ended with status {process.wait()} before it was ready; see its "
            "messages in the server's log for the reason "
            f"({settings.python} must be Python 3.10 or later with vLLM)"
        ) from error
    if isinstance(message, EngineError):
        process.wait()
        raise message
    log.info("vLLM %s serves %s", message.version, settings.model)
    return ours, process
