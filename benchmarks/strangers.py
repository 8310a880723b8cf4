"""What streams notice of strangers who send huge texts while the tokenizer hangs.

    python -m benchmarks.strangers

The gaps between the chunks of streams over emulated engines: first alone, then beside clients that
send texts of many megabytes while the tokenizer's process stands still.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.tools.client.client import Client
from tandem.tools.client.request import inputs_for
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
TOKENIZER = "/preprocessing/1/model.py"
STRANGERS_AT_ONCE = 16


def main() -> None:
    """Measure alone and beside strangers, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512, help="of each stream")
    parser.add_argument("--requests", type=int, default=200, help="of strangers")
    parser.add_argument("--megabytes", type=int, default=50, help="of each stranger's text")
    options = parser.parse_args()
    planned = deployment.load(PROFILE)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        with TritonServer(models, thread_pool_size=planned.thread_pool_size) as server:
            alone = gaps(server, options.streams, options.max_tokens)
            text = "x" * (options.megabytes << 20)
            with ThreadPoolExecutor(STRANGERS_AT_ONCE) as strangers, ThreadPoolExecutor(1) as us:
                begun = threading.Semaphore(0)
                measured = us.submit(gaps, server, options.streams, options.max_tokens, begun)
                for _ in range(options.streams):
                    begun.acquire()
                with standing_still(server):
                    told = list(
                        strangers.map(lambda _: refusal(server, text), range(options.requests))
                    )
                    beside = measured.result()
    for name, seconds in (("alone", alone), ("beside strangers", beside)):
        print(f"{name}: p99 of {len(seconds)} gaps is {np.percentile(seconds, 99) * 1e3:.1f} ms")  # noqa: T201
    print(f"{sum(map(bool, told))} of {options.requests} strangers were refused")  # noqa: T201


def gaps(
    server: TritonServer,
    streams: int,
    max_tokens: int,
    begun: threading.Semaphore | None = None,
) -> NDArray[np.float64]:
    """Return the seconds between chunks, of all streams at once.

    begun: released by each stream at its first chunk.
    """
    begun = begun or threading.Semaphore(0)
    with ThreadPoolExecutor(streams) as clients:
        prompts = [f"def number_{n}(" for n in range(streams)]
        found = clients.map(lambda prompt: gaps_of(server, prompt, max_tokens, begun), prompts)
        return np.concatenate(list(found))


def gaps_of(
    server: TritonServer, prompt: str, max_tokens: int, begun: threading.Semaphore
) -> NDArray[np.float64]:
    """Return the seconds between the chunks of one stream."""
    with Client(server.grpc_url) as client:
        seconds = []
        for chunk in client.stream("bls_stream", inputs_for(prompt, max_tokens, {})):
            seconds.append(chunk.seconds)
            if len(seconds) == 1:
                begun.release()
        return np.diff(seconds)


def refusal(server: TritonServer, text: str) -> str:
    """Return what a stranger is told."""
    try:
        with Client(server.grpc_url) as client:
            client.answer("bls", inputs_for(text, 4, {}, stream=False))
    except TandemError as error:
        return str(error)
    return ""


@contextmanager
def standing_still(server: TritonServer) -> Iterator[None]:
    """Stop the tokenizer's process for a while."""
    [pid] = [
        pid
        for pid in server.processes
        if TOKENIZER in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    ]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
