r"""Tests new guides in a process of their own, so that hostile guides can't harm the loop.

`llguidance` recurses for each reference of a schema and each rule of a grammar. A chain of 3,000
references overflows the stack and ends the process. An intersection of 300 expressions (5 kB) takes
minutes to compile, and only ending the process stops it.

The process loads the tokenizer once, and forks a copy of itself for each guide. A guide that
exceeds its time or memory limit ends its copy, and the process reports how the copy ended.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from llguidance import LLMatcher, LLParserLimits

from tandem.contract.guide import Guide
from tandem.contract.heap import trim_heap
from tandem.guides.errors import (
    TOO_LARGE,
    GuideError,
    GuideTakesLong,
    GuideUndecided,
    GuideWarning,
    check_run,
    one_line_reason,
)
from tandem.guides.grammar import GuideTokenizer, make_grammar, read_tokenizer

T = TypeVar("T")

# The worker's first arguments are its end of the pipe and the module path of this process.
PROGRAM: Final = """\
import json, sys
jobs, sys.path[:], *tokenizer = json.loads(sys.argv[1])
from multiprocessing.connection import Connection
from tandem.guides.worker import main
main(Connection(jobs), *tokenizer)
"""
SECONDS: Final = 30.0  # wall-time limit per guide, for busy machines
WORKER_TIMEOUT: Final = 2 * SECONDS  # a worker that is silent longer than this is killed
NICENESS: Final = 10  # the process gets about a tenth of a core if the machine is busy
MAX_BYTES: Final = 512 * 2**20  # memory limit for a copy
STACK_BYTES: Final = 3 * 2**19  # stack limit for a copy; threads of the loop have at least 2 MiB
SILENT: Final = 0
# An automaton with this many states is full and gets replaced. Long answers with long strings need
# a few thousand states.
MAX_STATES: Final = 50_000
# Verbose errors would contain the text of the answer.
LIMITS: Final = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_STATES)
PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
LIBC: Final = ctypes.CDLL(None)


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


def main(jobs: Connection, tokenizer_dir: str, vocab_size: int, end_ids: Sequence[int]) -> None:
    """Answer jobs until the sender closes the connection or exits."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the thread that started this process
    os.nice(max(0, NICENESS - os.nice(0)))  # the parent may already have a low priority
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit status would be lost
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer = read_tokenizer(Path(tokenizer_dir), vocab_size, end_ids)
    _answer(tokenizer, Guide("json", ""))  # fills the library's caches, which copies inherit
    gc.collect()
    gc.freeze()
    trim_heap()
    with suppress(EOFError, OSError):  # the sender has closed the connection
        while True:
            job = json.loads(jobs.recv_bytes())
            jobs.send_bytes(_test_in_copy(tokenizer, *job))


def _test_in_copy(tokenizer: GuideTokenizer, kind: str, text: str, cpu_seconds: float) -> bytes:
    """Test a guide in a copy of this process. Return its answer, or its exit status."""
    answers, theirs = Pipe(duplex=False)
    copy = os.fork()
    if not copy:
        _serve(theirs, tokenizer, Guide(kind, text), cpu_seconds)
    theirs.close()
    answer = b""
    with answers, suppress(EOFError, OSError):  # the copy ended too early
        answer = answers.recv_bytes()
    _, status = os.waitpid(copy, 0)
    return json.dumps({"status": status}).encode() if status else answer


def _serve(
    answers: Connection, tokenizer: GuideTokenizer, guide: Guide, cpu_seconds: float
) -> NoReturn:
    """Test a guide within limits, send the answer and end the process."""
    status = 1
    try:
        _set_limits()
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # the signal ends the process
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        answers.send_bytes(json.dumps(_answer(tokenizer, guide)).encode())
        status = 0
    finally:
        os._exit(status)


def _set_limits() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # keeps crashes out of the log
    faulthandler.disable()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    max_bytes = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))


def _answer(tokenizer: GuideTokenizer, guide: Guide) -> dict[str, Any]:
    """Return the fields of `ValidGuide`, or the reason why a guide is rejected."""
    before = _heap_bytes()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", GuideWarning)
            grammar = make_grammar(guide, tokenizer.special)
        compiled = LLMatcher(tokenizer.library, grammar, log_level=SILENT, limits=LIMITS)
        answer = compiled.deep_copy()
        _take_first_steps(answer, tokenizer.library.eos_tokens)
    except GuideError as error:
        return {"rejected": str(error)}
    except MemoryError:
        return {"rejected": TOO_LARGE}
    except Exception:  # noqa: BLE001  the traceback goes to the server's log
        return {"fault": traceback.format_exc()}
    failed = compiled.get_error() or answer.get_error()
    if failed:
        return {"failed": tokenizer.with_names(failed)}
    trim_heap()
    return {
        "grammar": grammar,
        "num_bytes": max(0, _heap_bytes() - before),
        "warnings": list(dict.fromkeys(str(warning.message) for warning in caught)),
    }


def _take_first_steps(answer: LLMatcher, end_ids: Sequence[int]) -> None:
    """Perform the loop's first steps with a guide. Some guides fail there or take minutes."""
    legal = int.from_bytes(answer.compute_bitmask(), "little")
    for end in end_ids:
        legal &= ~(1 << end)
    if legal:
        first = (legal & -legal).bit_length() - 1
        answer.rollback(answer.try_consume_tokens([first]))
        check_run(len(answer.compute_ff_tokens()))


def _heap_bytes() -> int:
    """Return the size of resident memory that isn't mapped from files, in bytes."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()
