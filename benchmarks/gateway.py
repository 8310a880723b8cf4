"""Measure the overhead of the gateway over direct gRPC streaming, on engines without delay.

    python -m benchmarks.gateway

Each turn sends the same prompt directly and through the gateway, to compare the time to the first
token and the time between chunks. Then many concurrent streams measure the gateway's processor
time. Streams with a single chunk separate the cost per request from the cost per chunk.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.servers import processor_seconds_of
from benchmarks.turns import in_turns, spread
from tandem.contract import entry as tensors
from tandem.tools.client.client import Client, Inputs
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-zero.yaml"
MODEL = "bls_stream"
IDS = list(range(2, 130))
MS = 1e3


class Stream(NamedTuple):
    """Times of one stream in milliseconds: to the first chunk, and on average between chunks."""

    first: float
    between: float
    num_chunks: int


class ProcessorTime(NamedTuple):
    """Milliseconds of processor time, and the number of streams and chunks that used it."""

    spent: float
    num_streams: int
    num_chunks: int


def main() -> None:
    options = _options()
    tokenizer = deployment.load(PROFILE).tokenizer.folder
    with (
        serving(deployment.load(PROFILE)) as server,
        _gateway(server.grpc_url, tokenizer) as (port, process),
    ):
        turns = _turns(server.grpc_url, port, options)
        short = _processor(port, process, 1, options.streams)
        long = [
            _processor(port, process, options.tokens, options.streams)
            for _ in range(options.repetitions)
        ]
    table = Table("ms", "direct", "through the gateway", "more", title=f"{options.turns} turns")
    for name in ("first", "between"):
        direct, through = (
            [getattr(stream, name) for stream in streams] for streams in turns.values()
        )
        more = [ours - theirs for theirs, ours in zip(direct, through, strict=True)]
        table.add_row(name, spread(direct), spread(through), spread(more))
    Console().print(table)
    _print_processor(short, long, options.streams)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=3, help="default: %(default)s")
    return parser.parse_args()


@contextmanager
def _gateway(url: str, tokenizer: Path) -> Iterator[tuple[int, int]]:
    """Run the gateway in a separate process; yield its port and its process id."""
    command = [sys.executable, "-m", "tandem", "gateway", "--url", url, "--port", "0"]
    with subprocess.Popen(
        [*command, "--tokenizer", str(tokenizer)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            yield int(greeting.split(" for ")[0].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def _turns(url: str, port: int, options: argparse.Namespace) -> dict[str, list[Stream]]:
    inputs: Inputs = {
        tensors.INPUT_IDS: IDS,
        tensors.MAX_TOKENS: options.tokens,
        tensors.STREAM: True,
    }
    with Client(url) as client:
        ways = {
            "direct": lambda _: _direct(client, inputs),
            "gateway": lambda _: _through(port, options.tokens),
        }
        return in_turns(ways, options.turns, "one stream")


def _direct(client: Client, inputs: Inputs) -> Stream:
    return _stream([chunk.seconds for chunk in client.stream(MODEL, inputs)])


def _through(port: int, tokens: int) -> Stream:
    body = {"prompt": IDS, "max_tokens": tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    moments = [
        time.perf_counter() - began
        for line in connection.getresponse()
        if line.startswith(b'data: {"id"')
    ]
    connection.close()
    return _stream(moments)


def _stream(moments: Sequence[float]) -> Stream:
    between = (moments[-1] - moments[0]) / max(1, len(moments) - 1)
    return Stream(MS * moments[0], MS * between, len(moments))


def _processor(port: int, process: int, tokens: int, at_once: int) -> ProcessorTime:
    """Measure the gateway's processor time for ``at_once`` streams of ``tokens`` tokens."""
    num_streams = 4 * at_once
    before = processor_seconds_of(process)
    with ThreadPoolExecutor(at_once) as clients:
        streams = clients.map(lambda _: _through(port, tokens), range(num_streams))
        num_chunks = sum(stream.num_chunks for stream in streams)
    return ProcessorTime(MS * (processor_seconds_of(process) - before), num_streams, num_chunks)


def _print_processor(short: ProcessorTime, long: Sequence[ProcessorTime], at_once: int) -> None:
    """Print the cost per chunk, and the fixed cost per request."""
    last = long[-1]
    chunk = (last.spent - short.spent) / (last.num_chunks - short.num_chunks)
    request = (short.spent - chunk * short.num_chunks) / short.num_streams
    Console().print(
        f"processor, {at_once} streams at once, {last.num_chunks / last.num_streams:.0f} chunks "
        f"each: {spread((time.spent / time.num_chunks for time in long), 3)} ms a chunk; "
        f"{chunk:.3f} without the {request:.2f} once per request (last of {len(long)} repetitions)"
    )


if __name__ == "__main__":
    main()
