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
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from benchmarks import faulty
from benchmarks.soak.asking import STREAM, SoakRequest, ask
from benchmarks.soak.clients import Clients, SoakOutcomes
from benchmarks.soak.faults import FaultInjector
from benchmarks.soak.growth import Growth, measure_growth, threads_at_rest
from benchmarks.soak.processes import Sample, is_at_rest, sample, stub_pid
from benchmarks.soak.questions import Question, answer_questions
from tandem.tools.profiles import deployment
from tandem.tools.triton.server import TritonServer, linked_repository

PROFILE = Path(__file__).with_name("profile.yaml")
SAMPLES_A_MINUTE = 12
SECONDS_TO_REST = 60.0
SECONDS_KILLED = 20.0  # duration of the load in whose middle the draft engine is killed
MAX_DEATHS = 5  # of Triton: the killed draft engine may hold the lock of their shared memory
SECONDS_UNWATCHED = 10.0
BAD_OUTCOMES = ("wrong", "unexplained", "unanswered")
out = Console(highlight=False, soft_wrap=True)


def main() -> int:
    options = _options()
    planned = deployment.load(PROFILE)
    faults: list[str] = []
    with linked_repository(planned) as models:
        faulty.plant(models)
        server = TritonServer(models, thread_pool_size=planned.thread_pool_size)
        with server:
            questions = answer_questions(server.grpc_url)
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
    outcomes, samples = SoakOutcomes(), []
    if not _eventually(lambda: is_at_rest(server)):
        return ["requests run or wait before the first one is sent"]
    before = sample(server)
    with FaultInjector(server.repository) as injector:
        clients = Clients(server.grpc_url, questions, outcomes, injector.explains)
        asked = options.streams, 60 * options.minutes
        asking = threading.Thread(target=clients.run, args=asked, daemon=True)
        asking.start()
        while asking.is_alive() and server.running:
            asking.join(60 / SAMPLES_A_MINUTE)
            with suppress(OSError):  # Triton has ended, so the loop ends too
                samples.append(sample(server))
                if len(samples) % SAMPLES_A_MINUTE == 0:
                    minute, memory = len(samples) // SAMPLES_A_MINUTE, samples[-1].memory_mb
                    out.print(
                        f"minute {minute}: {dict(outcomes.counts)}, {sum(memory.values()):.0f} MB"
                    )
    if not server.running:
        return [f"Triton ended: {server.log.last_error}"]
    faults = _bad_outcomes(outcomes)
    faults += _check_at_rest(server, injector)
    out.print("\n| what is held | at first | growth | allowed |\n|---|---|---|---|")
    faults += _describe_growth(measure_growth(samples))
    faults += _describe_growth(_threads_left(server, before))
    unwatched = max((s.heartbeat for s in samples if s.heartbeat is not None), default=0.0)
    if unwatched > SECONDS_UNWATCHED:
        faults.append(f"a watcher did not look for {unwatched:.0f} s")
    minutes = (samples[-1].moment - samples[0].moment) / 60
    out.print(f"\n{minutes:.0f} minutes, {options.streams} clients at once\n")
    _summarize(outcomes, injector)
    return faults


def _kill(server: TritonServer, questions: list[Question], streams: int) -> list[str]:
    """Kill the draft engine under load, which must not affect any answer."""
    for _ in range(MAX_DEATHS):
        if not server.running:
            server.stop()
            server.start()
        outcomes = SoakOutcomes()
        clients = Clients(server.grpc_url, questions, outcomes, lambda *_: False)
        asking = threading.Thread(target=clients.run, args=(streams, SECONDS_KILLED), daemon=True)
        asking.start()
        time.sleep(SECONDS_KILLED / 2)
        os.kill(stub_pid(server, "draft"), signal.SIGKILL)
        asking.join()
        if server.running:
            out.print(f"the draft was killed: {dict(outcomes.counts)}")
            rests = _eventually(lambda: is_at_rest(server))
            return [
                *(f"after the draft was killed: {fault}" for fault in _bad_outcomes(outcomes)),
                *([] if rests else ["requests still run after the draft was killed"]),
            ]
    return [f"Triton ended itself {MAX_DEATHS} times when the draft was killed"]


def _bad_outcomes(outcomes: SoakOutcomes) -> list[str]:
    counted = [f"{outcomes.counts[kind]} {kind}" for kind in BAD_OUTCOMES if outcomes.counts[kind]]
    return [*counted, *outcomes.examples]


def _check_at_rest(server: TritonServer, injector: FaultInjector) -> list[str]:
    """Return the problems that remain after all clients have left and all faults have ended."""
    faults = []
    if not _eventually(lambda: is_at_rest(server)):
        faults.append("requests still run or wait after all clients have gone")
    if not _eventually(lambda: sum(sample(server).lost.values()) <= injector.lost):
        faults.append(f"lost calls: {sample(server).lost}, the faults took {injector.lost}")
    late = ask(server.grpc_url, SoakRequest(STREAM, ("x = 1",), {"max_tokens": 400}, timeout=1000))
    if "exceeded its timeout" not in late.error:
        faults.append(f"a request with a time-out of 1 ms got: {late.error or late.texts}")
    return faults


def _threads_left(server: TritonServer, before: Sample) -> list[Growth]:
    """Return the growth of each model's threads, after the clients' threads have ended."""
    growths: list[Growth] = []

    def ended() -> bool:
        growths[:] = threads_at_rest(before, sample(server))
        return all(one.flat for one in growths)

    _eventually(ended)
    return growths


def _describe_growth(measured: Iterable[Growth]) -> list[str]:
    faults = []
    for one in measured:
        row = f"{one.first:.1f} | {one.growth:+.1f} | {one.allowed:+.1f}"
        out.print(f"| {one.name} | {row} |")
        if not one.flat:
            faults.append(f"{one.name} grew by {one.growth:.1f} from {one.first:.1f}")
    return faults


def _summarize(outcomes: SoakOutcomes, injector: FaultInjector) -> None:
    out.print("| requests | |\n|---|---|")
    for kind, count in outcomes.counts.most_common():
        out.print(f"| {kind} | {count} |")
    for fault, times in injector.injected.items():
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
