"""Test a server of the demo pair for an hour, with many clients and constant faults.

    python -m benchmarks.soak
    python -m benchmarks.soak --minutes 3 --streams 8

Clients request streams, single answers and batches, with every drafter, sampled and greedy, with
stop words, bad words, penalties and biases. A third of the clients disconnect early, some have very
short timeouts, and some send invalid requests. Engines and tokenizers raise errors, hang, lose
calls and answer late. Every answer is compared with the baseline's. At the end, the draft engine is
killed.

The exit status is 1 if an answer is wrong, an error isn't explained by a fault, the server's memory
or threads grow, a call is lost without a fault, or a watcher stops.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from benchmarks import faulty
from benchmarks.soak.asking import STREAM, SoakRequest, ask
from benchmarks.soak.crowd import Crowd, Ledger
from benchmarks.soak.faults import Trouble
from benchmarks.soak.flatness import Course, courses, threads_at_rest
from benchmarks.soak.processes import Sample, is_at_rest, process_of, sample
from benchmarks.soak.questions import Question, answered
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).with_name("profile.yaml")
SAMPLES_A_MINUTE = 12
SECONDS_TO_REST = 60.0
SECONDS_KILLED = 20.0  # duration of the load in whose middle the draft engine is killed
MOST_DEATHS = 5  # of Triton: the killed draft engine may hold the lock of their shared memory
SECONDS_UNWATCHED = 10.0
BAD_OUTCOMES = ("wrong", "unexplained", "unanswered")
COLUMNS = (
    *("minute", "finished", "cancelled", "timed out", "refused", "failed by a fault", "wrong"),
    *("unexplained", "memory MB", "threads", "descriptors", "shm MB", "heartbeat s", "lost"),
)
out = Console(width=200, highlight=False)


def main() -> int:
    options = _options()
    planned = deployment.load(PROFILE)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        faulty.plant(models)
        server = TritonServer(models, thread_pool_size=planned.thread_pool_size)
        with server:
            questions = answered(server.grpc_url)
            faults += _soak(server, questions, options)
            faults += _kill(server, questions, options.streams)
    for fault in faults:
        out.print(f"FAULT: {fault}", markup=False)
    out.print("the server held" if not faults else f"{len(faults)} faults")
    return bool(faults)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=16, help="clients at once")
    return parser.parse_args()


def _soak(
    server: TritonServer, questions: list[Question], options: argparse.Namespace
) -> list[str]:
    """Run the clients while faults occur, and return the problems found."""
    ledger, samples = Ledger(), []
    if not _eventually(lambda: is_at_rest(server)):
        return ["requests run or wait before the first one is sent"]
    before = sample(server)
    with Trouble(server.repository) as trouble:
        crowd = Crowd(server.grpc_url, questions, ledger, trouble.explains)
        asked = options.streams, 60 * options.minutes
        asking = threading.Thread(target=crowd.run, args=asked, daemon=True)
        asking.start()
        _table_row(COLUMNS)
        while asking.is_alive() and server.running:
            asking.join(60 / SAMPLES_A_MINUTE)
            with suppress(OSError):  # Triton has ended, so the loop ends too
                samples.append(sample(server))
                if len(samples) % SAMPLES_A_MINUTE == 0:
                    _show(samples, ledger)
    if not server.running:
        return [f"Triton ended: {server.log.last_error}"]
    faults = _of_ledger(ledger)
    faults += _of_rest(server, trouble)
    out.print("\n| what is held | at first | growth | allowed |\n|---|---|---|---|")
    faults += _of_courses(courses(samples))
    faults += _of_courses(_threads_left(server, before))
    unwatched = max((s.heartbeat for s in samples if s.heartbeat is not None), default=0.0)
    if unwatched > SECONDS_UNWATCHED:
        faults.append(f"a watcher did not look for {unwatched:.0f} s")
    minutes = (samples[-1].moment - samples[0].moment) / 60
    out.print(f"\n{minutes:.0f} minutes, {options.streams} clients at once\n")
    _summarize(ledger, trouble)
    return faults


def _kill(server: TritonServer, questions: list[Question], clients: int) -> list[str]:
    """Kill the draft engine under load, which must not affect any answer."""
    for _ in range(MOST_DEATHS):
        if not server.running:
            server.stop()
            server.start()
        ledger = Ledger()
        crowd = Crowd(server.grpc_url, questions, ledger, lambda *_: False)
        asking = threading.Thread(target=crowd.run, args=(clients, SECONDS_KILLED), daemon=True)
        asking.start()
        time.sleep(SECONDS_KILLED / 2)
        os.kill(process_of(server, "draft"), signal.SIGKILL)
        asking.join()
        if server.running:
            out.print(f"the draft was killed: {dict(ledger.counts)}")
            rests = _eventually(lambda: is_at_rest(server))
            return [
                *(f"after the draft was killed: {fault}" for fault in _of_ledger(ledger)),
                *([] if rests else ["requests still run after the draft was killed"]),
            ]
    return [f"Triton ended itself {MOST_DEATHS} times when the draft was killed"]


def _of_ledger(ledger: Ledger) -> list[str]:
    counted = [f"{ledger.counts[kind]} {kind}" for kind in BAD_OUTCOMES if ledger.counts[kind]]
    return [*counted, *ledger.examples]


def _of_rest(server: TritonServer, trouble: Trouble) -> list[str]:
    """Return the problems that remain after all clients have left and all faults have ended."""
    faults = []
    if not _eventually(lambda: is_at_rest(server)):
        faults.append("requests still run or wait after all clients have gone")
    if not _eventually(lambda: sum(sample(server).lost.values()) <= trouble.lost):
        faults.append(f"lost calls: {sample(server).lost}, the faults took {trouble.lost}")
    late = ask(server.grpc_url, SoakRequest(STREAM, ("x = 1",), {"max_tokens": 400}, timeout=1000))
    if "exceeded its timeout" not in late.error:
        faults.append(f"a request with a time-out of 1 ms got: {late.error or late.texts}")
    return faults


def _threads_left(server: TritonServer, before: Sample) -> list[Course]:
    """Return the growth of each model's threads, after the clients' threads have ended."""
    courses_at_rest: list[Course] = []

    def ended() -> bool:
        courses_at_rest[:] = threads_at_rest(before, sample(server))
        return all(course.flat for course in courses_at_rest)

    _eventually(ended)
    return courses_at_rest


def _of_courses(measured: Iterable[Course]) -> list[str]:
    faults = []
    for course in measured:
        row = f"{course.first:.1f} | {course.growth:+.1f} | {course.allowed:+.1f}"
        out.print(f"| {course.name} | {row} |")
        if not course.flat:
            faults.append(f"{course.name} grew by {course.growth:.1f} from {course.first:.1f}")
    return faults


def _show(samples: list[Sample], ledger: Ledger) -> None:
    now, counts = samples[-1], ledger.counts
    _table_row(
        (
            str(len(samples) // SAMPLES_A_MINUTE),
            *(str(counts[kind]) for kind in COLUMNS[1:8]),
            " ".join(f"{name}:{mb:.0f}" for name, mb in sorted(now.memory_mb.items())),
            str(sum(now.threads.values())),
            str(sum(now.descriptors.values())),
            f"{now.shared_mb:.1f}",
            "-" if now.heartbeat is None else f"{now.heartbeat:.1f}",
            str(sum(now.lost.values())),
        )
    )


def _table_row(cells: tuple[str, ...]) -> None:
    out.print("| " + " | ".join(cells) + " |", soft_wrap=True, markup=False)


def _summarize(ledger: Ledger, trouble: Trouble) -> None:
    out.print("| requests | |\n|---|---|")
    for kind, count in ledger.counts.most_common():
        out.print(f"| {kind} | {count} |")
    for fault, times in trouble.injected.items():
        out.print(f"| fault: {fault} | {times} |")


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS_TO_REST
    holds = False
    while not holds and time.monotonic() < deadline:
        time.sleep(0.2)
        with suppress(OSError):
            holds = condition()
    return holds


if __name__ == "__main__":
    sys.exit(main())
