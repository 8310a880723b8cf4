"""What streams notice of strangers whose guides are heavy, and what others' new guides wait for.

    python -m benchmarks.heavy_guides

The gaps between the chunks of streams over emulated engines: alone; beside processes of a low
priority that do nothing but compute, which is what the machine makes of a compiler of guides;
beside clients who send small guides, a new one with each request; and beside as many whose guides
take seconds to compile, cannot be compiled, or make each mask long. Meanwhile somebody asks for a
new small guide again and again: the seconds to the first chunk.
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
from contextlib import closing, contextmanager
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
STREAM_TOKENS = 2000  # of each streamed answer: a client asks for one after the other
STREAM_START = 60.0  # seconds until all streams have begun
MAX_TOKENS = 200
PAUSE = 0.2  # seconds between two small guides
MS: Final = 1e3
GuideOf = Callable[[int], tuple[str, str, str]]  # by a number: a name, a type and a text


def main() -> None:
    """Measure alone, beside busy processes, and beside strangers; print all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8, help="that are measured")
    parser.add_argument("--seconds", type=float, default=60, help="of each case")
    parser.add_argument("--at-once", type=int, default=16, help="strangers")
    options = parser.parse_args()
    with serving(deployment.load(PROFILE)) as server:
        url = server.grpc_url
        for name, beside in (
            ("alone", idle()),
            ("beside busy processes", busy()),
            ("beside small guides", strangers(url, options.at_once, small_guide)),
            ("beside heavy guides", strangers(url, options.at_once, heavy_guide)),
        ):
            with (
                streams(url, options.streams) as gaps,
                newcomer(url, name) as waits,
                beside as told,
            ):
                time.sleep(options.seconds)
            report(name, gaps, waits, told)


@contextmanager
def streams(url: str, count: int) -> Iterator[list[float]]:
    """Run streams in the background; yield the list that collects the seconds between chunks."""
    gaps: list[float] = []
    begun, over = threading.Barrier(count + 1), threading.Event()
    with ThreadPoolExecutor(count) as clients:
        listeners = [clients.submit(listen, url, n, gaps, begun, over) for n in range(count)]
        try:
            begun.wait(STREAM_START)
            yield gaps
        finally:
            over.set()
    for each in listeners:
        each.result()


def listen(
    url: str, number: int, gaps: list[float], begun: threading.Barrier, over: threading.Event
) -> None:
    """Stream one answer after the other until ``over`` is set."""
    inputs = inputs_for(f"def number_{number}(", STREAM_TOKENS, {tensors.END_ID: -1})
    first = True
    with Client(url) as client:
        while not over.is_set():
            with closing(client.stream("bls_stream", inputs)) as chunks:
                before = next(chunks).seconds
                if first:
                    begun.wait(STREAM_START)
                    first = False
                for chunk in chunks:
                    gaps.append(chunk.seconds - before)
                    before = chunk.seconds
                    if over.is_set():
                        break


def report(name: str, gaps: list[float], waits: list[float], told: Counter[str]) -> None:
    """Print one case."""
    p50, p99, longest = (MS * np.percentile(gaps, part) for part in (50, 99, 100))
    print(  # noqa: T201
        f"{name}: {len(gaps)} gaps, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.0f} ms; "
        f"{len(waits)} small guides, first chunk after {np.median(waits):.2f} s, "
        f"{max(waits):.2f} s at most"
    )
    for line, count in told.most_common(8):
        print(f"    {count} times: {line[:150]}")  # noqa: T201


@contextmanager
def idle() -> Iterator[Counter[str]]:
    """Nobody else."""
    yield Counter()


@contextmanager
def busy() -> Iterator[Counter[str]]:
    """As many processes as cores, which compute."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=turn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        yield Counter()
    finally:
        for process in processes:
            process.kill()
            process.join()


def turn() -> None:
    """Compute for ever, as what compiles a guide does."""
    os.nice(NICENESS)
    while True:
        pass


@contextmanager
def strangers(url: str, count: int, guide_of: GuideOf) -> Iterator[Counter[str]]:
    """Clients in a process of the lowest priority, and how their answers ended."""
    spawn = multiprocessing.get_context("spawn")
    over, heard = spawn.Event(), spawn.Queue()
    process = spawn.Process(target=ask_all, args=(url, count, guide_of, over, heard))
    process.start()
    told: Counter[str] = Counter()
    try:
        yield told
    finally:
        over.set()
        told.update(heard.get())
        process.join()


def ask_all(
    url: str, count: int, guide_of: GuideOf, over: threading.Event, heard: multiprocessing.Queue
) -> None:
    """Ask with one guide after the other until it is over."""
    os.nice(19)
    with ThreadPoolExecutor(count) as clients:
        ends = [
            clients.submit(ask, url, range(n, 10**9, count), guide_of, over) for n in range(count)
        ]
    heard.put(sum((end.result() for end in ends), Counter()))


def ask(url: str, numbers: range, guide_of: GuideOf, over: threading.Event) -> Counter[str]:
    """Ask with the guides of these numbers; return how the answers ended."""
    told: Counter[str] = Counter()
    with Client(url) as client:
        for number in numbers:
            if over.is_set():
                break
            name, kind, text = guide_of(number)
            told[f"{name}: {_end_of(client, _inputs(kind, text, number))}"] += 1
    return told


def _end_of(client: Client, asked: Inputs) -> str:
    try:
        chunks = list(client.stream("bls_stream", asked))
    except TandemError as error:
        return str(error)
    return f"{chunks[-1].finish_reason}"


def heavy_guide(number: int) -> tuple[str, str, str]:
    """Return a name, a type and a text that nobody sent before."""
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
    """Return the like, as most guides are: compiled within milliseconds."""
    kind = number % 4
    if kind == 0:
        return "small grammar", "lark_grammar", f'start: "{number}" /[a-z ]+/'
    if kind == 1:
        return "few values", "json_schema", json.dumps({"enum": [f"{number}", "another"]})
    if kind == 2:
        return "expression", "regex", f"(?s:.*)a{number}(?s:.*)"
    properties = {f"of {number}": {"type": "string"}, "another": {"type": "number"}}
    return "object", "json_schema", json.dumps({"type": "object", "properties": properties})


@contextmanager
def newcomer(url: str, name: str) -> Iterator[list[float]]:
    """Somebody who asks by small guides that are new; the seconds to each first chunk."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as client:
        waits = client.submit(_waits, url, name, over)
        seconds: list[float] = []
        try:
            yield seconds
        finally:
            over.set()
            seconds += waits.result()


def _waits(url: str, name: str, over: threading.Event) -> list[float]:
    waits: list[float] = []
    with Client(url) as client:
        while not over.wait(PAUSE):
            choices = json.dumps([f"{name} {len(waits)}", "another"])
            waits.append(
                next(iter(client.stream("bls_stream", _inputs("choice", choices)))).seconds
            )
    return waits


def _inputs(kind: str, text: str, seed: int = 1) -> Inputs:
    """What is sampled by a guide: such a text is longer, and less even, than the likeliest."""
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
