"""How late the emulated engine answers on this machine.

    python -m benchmarks.wait_error

Steps as long as those of the emulated pairs, from one call at a time to sixteen at once, each
beside a plain sleep. Negative: early.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.engines.emulated.engine import MS, EmulatedEngine
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.emulated.timers import WallTimer
from tandem.engines.request import EngineRequest

STEPS_MS = (1.13, 11.3, 20.53, 31.38)
AT_ONCE = (1, 4, 16)
SECONDS = 3.0


Lateness = list[float]  # of each wait, in milliseconds


def measure(step_ms: float, at_once: int) -> tuple[Lateness, float]:
    """Return how late each answer was, and the share of one core that the engine took."""
    engine = EmulatedEngine(_settings(step_ms), WallTimer())

    def wait(number: int) -> int:
        answered: Future[int] = Future()
        request = EngineRequest("", np.full(64, number, np.int32), 1)
        begin = time.monotonic_ns()
        engine.submit(request, lambda _answer: answered.set_result(time.monotonic_ns()))
        return answered.result() - begin

    before = time.process_time()
    late = _repeat(wait, step_ms, at_once)
    busy = (time.process_time() - before) / SECONDS
    engine.close()
    return late, busy


def measure_sleep(step_ms: float, at_once: int) -> Lateness:
    """Return how late plain sleeps end under the same conditions: the machine's own part."""

    def wait(_number: int) -> int:
        begin = time.monotonic_ns()
        time.sleep(step_ms / 1000)
        return time.monotonic_ns() - begin

    return _repeat(wait, step_ms, at_once)


def _repeat(wait: Callable[[int], int], step_ms: float, at_once: int) -> Lateness:
    """Wait again and again on several threads; return how late each wait ended.

    wait: returns how long it took, in nanoseconds.
    """
    late: Lateness = []
    ends = time.monotonic() + SECONDS

    def chain(number: int) -> None:
        while time.monotonic() < ends:
            late.append(wait(number) / MS - step_ms)

    threads = [threading.Thread(target=chain, args=(number,)) for number in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return late


def _settings(step_ms: float) -> EmulatedSettings:
    return EmulatedSettings(
        role="target",
        vocab_size=128_256,
        low_id=0,
        high_id=128_000,
        max_seq_len=8192,
        kv_cache_tokens=10**6,
        step_ms=step_ms,
    )


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.setswitchinterval(1e-4)  # as the engine's process has it
    table = Table(title="milliseconds that answers of the emulated engine, and sleeps, are late")
    for heading in ("step ms", "at once", "p10", "median", "p90", "of a core", "sleep", "p90"):
        table.add_column(heading, justify="right")
    for step_ms in STEPS_MS:
        for at_once in AT_ONCE:
            late, busy = measure(step_ms, at_once)
            asleep = measure_sleep(step_ms, at_once)
            answers = [f"{value:.3f}" for value in np.percentile(late, [10, 50, 90])]
            sleeps = [f"{value:.3f}" for value in np.percentile(asleep, [50, 90])]
            table.add_row(f"{step_ms}", f"{at_once}", *answers, f"{busy:.0%}", *sleeps)
    Console().print(table)


if __name__ == "__main__":
    main()
