"""Starts the processes that test guides (`worker_process.py`), and sends them guides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tandem.contract.guide import Guide
from tandem.guides.errors import TOO_LARGE, GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.matcher import one_line_reason
from tandem.guides.worker_process import NICENESS, SECONDS

T = TypeVar("T")

# The worker's first arguments are its end of the pipe and the module path of this process.
PROGRAM: Final = """\
import json, sys
jobs, sys.path[:], *tokenizer = json.loads(sys.argv[1])
from multiprocessing.connection import Connection
from tandem.guides.worker_process import main
main(Connection(jobs), *tokenizer)
"""
WORKER_TIMEOUT: Final = 2 * SECONDS  # a worker that is silent longer than this is killed


class ValidGuide(NamedTuple):
    """A guide that compiles.

    grammar: the library's grammar. num_bytes: memory use of the compiled form in bytes. warnings:
    warnings about parts that aren't enforced.
    """

    grammar: str
    num_bytes: int
    warnings: tuple[str, ...] = ()


class Worker:
    """A process that tests guides, one at a time, and a low-priority thread that uses it.

    cpu_seconds: limit per guide. The process starts with ``start`` or with the first guide. If it
    has ended, the next guide restarts it.
    """

    def __init__(
        self, cpu_seconds: float, tokenizer_dir: Path, vocab_size: int, end_ids: Sequence[int]
    ) -> None:
        self.cpu_seconds = cpu_seconds
        self._tokenizer = [str(tokenizer_dir), vocab_size, list(end_ids)]
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICENESS,))

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which runs on the thread and may call ``try_out``.

        Raises GuideUndecided if no thread can be started.
        """
        try:
            done = self._thread.submit(work)
        except RuntimeError as error:
            raise GuideUndecided("no thread was available to compile it") from error
        return done.result()

    def start(self) -> None:
        """Start the process, without waiting until it has loaded the tokenizer.

        Raises OSError if the process can't start, or GuideError if there is no Python executable.
        """
        self._jobs, theirs = Pipe()
        with theirs:
            arguments = json.dumps([theirs.fileno(), [*map(str, sys.path)], *self._tokenizer])
            # Inside Triton's stub process, sys.executable isn't Python.
            try:
                self._process = subprocess.Popen(
                    [python(), "-I", "-S", "-c", PROGRAM, arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # so that signals to Triton's session don't reach it
                )
            except FileNotFoundError as error:
                raise GuideError(
                    f"its Python executable {python()} is missing; install it"
                ) from error

    def close(self) -> None:
        """End the process. Any thread may call this."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def try_out(self, guide: Guide) -> ValidGuide:
        """Compile a guide and compute its first mask.

        Raises GuideError if either step fails, GuideTakesLong if it exceeds the limit,
        GuideUndecided if the machine lacks time or memory, and OSError if no process can start.
        """
        if self._process is None or self._process.poll() is not None:
            self.start()
        try:
            self._jobs.send_bytes(json.dumps([*guide, self.cpu_seconds]).encode())
            if not self._jobs.poll(WORKER_TIMEOUT):
                raise EOFError  # noqa: TRY301
            answer = json.loads(self._jobs.recv_bytes())
        except Exception as error:
            self.close()  # so that the next guide doesn't get this one's answer
            raise GuideUndecided("the process that compiles guides has ended") from error
        if "status" in answer:
            raise _exit_error(answer["status"], self.cpu_seconds)
        if "rejected" in answer:
            raise GuideError(answer["rejected"])
        if "failed" in answer:
            raise GuideError(one_line_reason(answer["failed"]))
        if "fault" in answer:
            raise RuntimeError(f"the process that compiles guides failed:\n{answer['fault']}")
        return ValidGuide(answer["grammar"], answer["num_bytes"], tuple(answer["warnings"]))


def python() -> str:
    """Return the path of the Python executable that runs this process."""
    return f"{sys.base_exec_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _exit_error(status: int, cpu_seconds: float) -> GuideError:
    """Return the error for a guide whose test ended the process with ``status``."""
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if ended_by == signal.SIGPROF:
        return GuideTakesLong(
            f"it takes longer than {cpu_seconds:g} s to compile; send a simpler one"
        )
    if ended_by == signal.SIGALRM:
        return GuideUndecided(f"it wasn't compiled within {SECONDS:.0f} s")
    if ended_by in (None, signal.SIGKILL):
        return GuideUndecided("no memory or thread was available to compile it")
    return GuideError(TOO_LARGE)
