"""What streams notice of strangers who send huge texts while the tokenizer hangs.

    python -m benchmarks.strangers

The gaps between the chunks of streams over emulated engines: alone; beside clients that send texts
of many megabytes to a model that does not exist; beside clients that send the same texts to
``bls``, while the tokenizer answers nobody and ordinary requests wait for it.

The strangers are processes of the lowest priority. On few cores they slow the streams all the same:
the second case shows by how much, for there Triton refuses the texts before any model has them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import faulty
from tandem.contract import entry as tensors
from tandem.tools.client.client import Client
from tandem.tools.client.request import inputs_for
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
MAX_TOKENS = 2000  # of each answer: a client asks for one after the other
PATIENCE = 60.0  # seconds until all streams have begun
KEPT = 60  # Triton 2.51 never frees a request to a model that does not exist: 3 GB
HELD = 16  # ordinary requests that wait for the tokenizer


def main() -> None:
    """Measure alone and beside strangers, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8, help="that are measured")
    parser.add_argument("--seconds", type=float, default=20, help="of the streams alone")
    parser.add_argument("--requests", type=int, default=200, help="of strangers")
    parser.add_argument("--megabytes", type=int, default=50, help="of each stranger's text")
    parser.add_argument("--at-once", type=int, default=1, help="strangers at a time")
    options = parser.parse_args()
    gaps: dict[str, list[float]] = {}
    with serving() as (server, faults):
        url, size = server.grpc_url, options.megabytes << 20
        with streams(url, options.streams) as gaps["alone"]:
            time.sleep(options.seconds)
        with streams(url, options.streams) as gaps["beside texts to no model"]:
            number = min(options.requests, KEPT)
            storm(partial(refusal, url, "no_such_model"), size, number, options.at_once)
        with (
            streams(url, options.streams) as gaps["beside strangers"],
            hanging_tokenizer(url, faults),
        ):
            lines = storm(partial(refusal, url, "bls"), size, options.requests, options.at_once)
    p99 = {name: np.percentile(seconds, 99) for name, seconds in gaps.items()}
    for name, seconds in gaps.items():
        p50 = np.median(seconds)
        print(f"{name}: {len(seconds)} gaps, p50 {p50 * 1e3:.1f} ms, p99 {p99[name] * 1e3:.1f} ms")  # noqa: T201
    *others, ours = p99
    for other in others:
        print(f"p99 {ours} / {other}: {p99[ours] / p99[other]:.2f}")  # noqa: T201
    print(f"{sum(map(bool, lines))} of {options.requests} strangers were refused: {lines[0]}")  # noqa: T201


@contextmanager
def serving() -> Iterator[tuple[TritonServer, faulty.Faults]]:
    """A server of emulated engines, whose tokenizer hangs on demand."""
    planned = deployment.load(PROFILE)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        faulty.plant(models)
        with TritonServer(models, thread_pool_size=planned.thread_pool_size) as server:
            yield server, faulty.Faults(models)


@contextmanager
def streams(url: str, count: int) -> Iterator[list[float]]:
    """Streams under way meanwhile; the seconds between chunks, of all of them, are in the list."""
    gaps: list[float] = []
    begun, over = threading.Barrier(count + 1), threading.Event()
    with ThreadPoolExecutor(count) as clients:
        told = [clients.submit(listen, url, n, gaps, begun, over) for n in range(count)]
        try:
            begun.wait(PATIENCE)
            yield gaps
        finally:
            over.set()
    for each in told:
        each.result()


def listen(
    url: str, number: int, gaps: list[float], begun: threading.Barrier, over: threading.Event
) -> None:
    """Stream one answer after the other until it is over, from when all have begun."""
    inputs = inputs_for(f"def number_{number}(", MAX_TOKENS, {tensors.END_ID: -1})
    first = True
    with Client(url) as client:
        while not over.is_set():
            with closing(client.stream("bls_stream", inputs)) as chunks:
                before = next(chunks).seconds
                if first:
                    begun.wait(PATIENCE)
                    first = False
                for chunk in chunks:
                    gaps.append(chunk.seconds - before)
                    before = chunk.seconds
                    if over.is_set():
                        break


@contextmanager
def hanging_tokenizer(url: str, faults: faulty.Faults) -> Iterator[None]:
    """A tokenizer that answers nobody meanwhile, and requests that wait for it."""
    over = threading.Event()
    with ThreadPoolExecutor(HELD) as clients, faults.of("preprocessing", "hold"):
        waiting = [clients.submit(wait, url, f"held {n}", over) for n in range(HELD)]
        try:
            yield
        finally:
            over.set()
    for each in waiting:
        each.result()


def wait(url: str, prompt: str, over: threading.Event) -> None:
    """Wait for the tokenizer; ask again whenever the loop has given it up."""
    while not over.is_set():
        with suppress(TandemError):
            answer(url, prompt)


def answer(url: str, prompt: str, model: str = "bls") -> None:
    """Have a prompt answered."""
    with Client(url) as client:
        client.answer(model, inputs_for(prompt, 4, {}, stream=False))


def storm(stranger: Callable[[int], str], size: int, requests: int, at_once: int) -> list[str]:
    """Return the answer to each stranger who sends a text of ``size`` bytes."""
    spawn = multiprocessing.get_context("spawn")
    # A client holds what it sent until Python looks for cycles: a fresh process after some texts.
    with spawn.Pool(at_once, os.nice, (19,), maxtasksperchild=10) as strangers:
        return strangers.map(stranger, [size] * requests, chunksize=1)


def refusal(url: str, model: str, size: int) -> str:
    """Send a text; return the error, or nothing if it was answered."""
    try:
        answer(url, "x" * size, model)
    except TandemError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
