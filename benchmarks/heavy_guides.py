"""Measure how other clients' guides slow down streams, and how long small guides wait.

    python -m benchmarks.heavy_guides

Streams run on emulated engines under four loads:

1. no other load
2. busy processes with the priority of a guide compiler
3. clients that send small guides, a new one per request
4. clients whose guides take seconds to compile, can't be compiled, or make each mask slow

Meanwhile another client sends new small guides. The results are the times between the streams'
chunks, and that client's times to the first chunk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import numpy as np

from tandem.contract import entry as tensors
from tandem.guides.worker import NICENESS
from tandem.tools.client.client import Client, Inputs, inputs_for
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
STREAM_TOKENS = 2000  # output tokens per stream
STREAM_START = 60.0  # timeout in seconds for all streams to start
MAX_TOKENS = 200
PAUSE = 0.2  # seconds between small guides
MS: Final = 1e3
GuideOf = Callable[[int], tuple[str, str, str]]  # number -> (name, type, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8, help="that are measured")
    parser.add_argument("--seconds", type=float, default=60, help="of each case")
    parser.add_argument("--at-once", type=int, default=16, help="other clients")
    options = parser.parse_args()
    with serving(deployment.load(PROFILE)) as server:
        url = server.grpc_url
        for name, load in (
            ("alone", nullcontext(Counter[str]())),
            ("busy processes", busy()),
            ("small guides", others(url, options.at_once, small_guide)),
            ("heavy guides", others(url, options.at_once, heavy_guide)),
        ):
            over = threading.Event()
            with ThreadPoolExecutor(options.streams + 1) as clients:
                begun = threading.Barrier(options.streams + 1)
                streams = [
                    clients.submit(listen, url, n, begun, over) for n in range(options.streams)
                ]
                begun.wait(STREAM_START)
                newcomer = clients.submit(first_chunks, url, name, over)
                with load as endings:
                    time.sleep(options.seconds)
                    over.set()
            gaps = [gap for stream in streams for gap in stream.result()]
            report(name, gaps, newcomer.result(), endings)


def listen(url: str, number: int, begun: threading.Barrier, over: threading.Event) -> list[float]:
    """Stream answers one after the other until ``over``; return the seconds between chunks."""
    inputs = inputs_for(f"def number_{number}(", STREAM_TOKENS, {tensors.END_ID: -1})
    gaps: list[float] = []
    with Client(url) as client:
        while not over.is_set():
            with closing(client.stream("bls_stream", inputs)) as chunks:
                before = next(chunks).seconds
                if not gaps:
                    begun.wait(STREAM_START)
                for chunk in chunks:
                    gaps.append(chunk.seconds - before)
                    before = chunk.seconds
                    if over.is_set():
                        break
    return gaps


def first_chunks(url: str, name: str, over: threading.Event) -> list[float]:
    """Send new small guides until ``over``; return the seconds to the first chunk of each."""
    waits: list[float] = []
    with Client(url) as client:
        while not over.wait(PAUSE):
            choices = json.dumps([f"{name} {len(waits)}", "another"])
            chunks = client.stream("bls_stream", _inputs("choice", choices))
            waits.append(next(iter(chunks)).seconds)
    return waits


def report(name: str, gaps: list[float], waits: list[float], endings: Counter[str]) -> None:
    p50, p99, longest = (MS * np.percentile(gaps, part) for part in (50, 99, 100))
    print(  # noqa: T201
        f"{name}: {len(gaps)} gaps, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.0f} ms; "
        f"{len(waits)} small guides, first chunk after {np.median(waits):.2f} s, "
        f"{max(waits):.2f} s at most"
    )
    for line, count in endings.most_common(8):
        print(f"    {count} times: {line[:150]}")  # noqa: T201


@contextmanager
def busy() -> Iterator[Counter[str]]:
    """Keep every core busy within the context."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=compute, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        yield Counter()
    finally:
        for process in processes:
            process.kill()
            process.join()


def compute() -> None:
    """Compute forever, with the priority of a guide compiler."""
    os.nice(NICENESS)
    while True:
        pass


@contextmanager
def others(url: str, count: int, guide_of: GuideOf) -> Iterator[Counter[str]]:
    """Run ``count`` clients in a process of the lowest priority, and count how answers end."""
    spawn = multiprocessing.get_context("spawn")
    over, counted = spawn.Event(), spawn.Queue()
    process = spawn.Process(target=ask_all, args=(url, count, guide_of, over, counted))
    process.start()
    endings: Counter[str] = Counter()
    try:
        yield endings
    finally:
        over.set()
        endings.update(counted.get())
        process.join()


def ask_all(
    url: str, count: int, guide_of: GuideOf, over: threading.Event, counted: multiprocessing.Queue
) -> None:
    """Send guides with ``count`` clients until ``over``, and count how answers end."""
    os.nice(19)
    with ThreadPoolExecutor(count) as clients:
        endings = [
            clients.submit(ask, url, range(n, 10**9, count), guide_of, over) for n in range(count)
        ]
    counted.put(sum((one.result() for one in endings), Counter()))


def ask(url: str, numbers: range, guide_of: GuideOf, over: threading.Event) -> Counter[str]:
    """Send the guides with these numbers one by one, and count how answers end."""
    endings: Counter[str] = Counter()
    with Client(url) as client:
        for number in numbers:
            if over.is_set():
                break
            name, kind, text = guide_of(number)
            try:
                chunks = list(client.stream("bls_stream", _inputs(kind, text, number)))
                ending = str(chunks[-1].finish_reason)
            except TandemError as error:
                ending = str(error)
            endings[f"{name}: {ending}"] += 1
    return endings


def heavy_guide(number: int) -> tuple[str, str, str]:
    """Return the name, type and text of a new guide that is slow to compile or to apply."""
    kind = number % 4
    if kind == 0:
        return (
            "intersections",
            "lark_grammar",
            "start: X\nX: " + " & ".join(f"/.*a{n}.*/" for n in range(number, number + 300)),
        )
    if kind == 1:
        values = [f"{n * 7919 % 10007} {number}" for n in range(8000)]
        return "many values", "json_schema", json.dumps({"enum": values})
    if kind == 2:
        return "many states", "regex", f"(?s:.*)a{number}.{{12}}b.{{12}}c(?s:.*)d.{{9}}"
    lexemes = "\n".join(f"A{n}: /[a-z ]*k{n}{number}[a-z ]*/" for n in range(200))
    either = " | ".join(f"A{n}" for n in range(200))
    return "lexemes", "lark_grammar", f"start: a+\na: {either}\n{lexemes}\n"


def small_guide(number: int) -> tuple[str, str, str]:
    """Return the name, type and text of a new guide that compiles within milliseconds."""
    kind = number % 4
    if kind == 0:
        return "small grammar", "lark_grammar", f'start: "{number}" /[a-z ]+/'
    if kind == 1:
        return "few values", "json_schema", json.dumps({"enum": [f"{number}", "another"]})
    if kind == 2:
        return "expression", "regex", f"(?s:.*)a{number}(?s:.*)"
    properties = {f"of {number}": {"type": "string"}, "another": {"type": "number"}}
    return "object", "json_schema", json.dumps({"type": "object", "properties": properties})


def _inputs(kind: str, text: str, seed: int = 1) -> Inputs:
    """Return a sampled request, because sampled answers are longer than greedy ones."""
    asked: Inputs = {
        tensors.GUIDED_DECODING_GUIDE_TYPE: kind,
        tensors.GUIDED_DECODING_GUIDE: text,
        tensors.TEMPERATURE: 1.0,
        tensors.TOP_P: 1.0,
        tensors.SEED: seed,
    }
    return inputs_for("say: ", MAX_TOKENS, asked)


if __name__ == "__main__":
    main()
