"""What streams notice of strangers who send huge texts while the tokenizer hangs.

    python -m benchmarks.strangers

The gaps between the chunks of streams over emulated engines: first alone, then beside clients that
send texts of many megabytes, while the tokenizer answers nobody and ordinary requests wait for it.
The strangers have processes of their own: what they take is the server's time, not the streams'.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
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
MAX_TOKENS = 8000  # of each stream: more than there is time for
PATIENCE = 60.0  # seconds until all streams have begun
HELD = 16  # ordinary requests that wait for the tokenizer


def main() -> None:
    """Measure alone and beside strangers, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="of the streams alone")
    parser.add_argument("--requests", type=int, default=200, help="of strangers")
    parser.add_argument("--megabytes", type=int, default=50, help="of each stranger's text")
    parser.add_argument("--at-once", type=int, default=4, help="strangers at a time")
    options = parser.parse_args()
    with serving() as (server, faults):
        with streams(server.grpc_url, options.streams) as alone:
            time.sleep(options.seconds)
        url, size = server.grpc_url, options.megabytes << 20
        with streams(url, options.streams) as beside, hanging_tokenizer(url, faults):
            lines = storm(url, options.requests, size, options.at_once)
    p99 = {}
    for name, seconds in (("alone", alone), ("beside strangers", beside)):
        p99[name] = np.percentile(seconds, 99)
        print(f"{name}: p99 of {len(seconds)} gaps is {p99[name] * 1e3:.1f} ms")  # noqa: T201
    print(f"beside strangers / alone: {p99['beside strangers'] / p99['alone']:.2f}")  # noqa: T201
    print(f"{sum(map(bool, lines))} of {options.requests} strangers were refused: {lines[0]}")  # noqa: T201


@contextmanager
def serving() -> Iterator[tuple[TritonServer, faulty.Faults]]:
    """A server of emulated engines, whose tokenizer hangs when told to."""
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
    """Stream until it is over, from when all have begun."""
    inputs = inputs_for(f"def number_{number}(", MAX_TOKENS, {tensors.END_ID: -1})
    with Client(url) as client, closing(client.stream("bls_stream", inputs)) as chunks:
        before = next(chunks).seconds
        begun.wait(PATIENCE)
        for chunk in chunks:
            gaps.append(chunk.seconds - before)
            before = chunk.seconds
            if over.is_set():
                return


@contextmanager
def hanging_tokenizer(url: str, faults: faulty.Faults) -> Iterator[None]:
    """A tokenizer that answers nobody meanwhile, and requests that wait for it."""
    with ThreadPoolExecutor(HELD) as clients, faults.of("preprocessing", "hold"):
        answers = [clients.submit(answer, url, f"held {n}") for n in range(HELD)]
        yield
    for each in answers:
        each.result()


def answer(url: str, prompt: str) -> None:
    """Have a prompt answered."""
    with Client(url) as client:
        client.answer("bls", inputs_for(prompt, 4, {}, stream=False))


def storm(url: str, requests: int, size: int, at_once: int) -> list[str]:
    """Return what each stranger is told."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=spawn) as strangers:
        return list(strangers.map(partial(refusal, url), [size] * requests))


def refusal(url: str, size: int) -> str:
    """Return what a stranger is told; nothing if he is answered."""
    try:
        answer(url, "x" * size)
    except TandemError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
