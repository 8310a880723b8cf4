"""What the gateway costs beside direct gRPC streaming, on engines that answer at once.

    python -m benchmarks.gateway

Each turn asks the same prompt both ways, one after the other: the first token and the time between
chunks are compared turn by turn. Then many streams run at once through the gateway, for the
processor time that they take of it, in turns with the barest gateway that there can be; and short
streams of one chunk, so that what a request takes once can be told from what each chunk takes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tandem.contract import entry as tensors
from tandem.tools.client.client import Client, Inputs
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-zero.yaml"
MODEL = "bls_stream"
IDS = list(range(2, 130))
MS = 1e3
TICK = os.sysconf("SC_CLK_TCK")


class Stream(NamedTuple):
    """Milliseconds to the first chunk and between chunks on average, and how many there were."""

    first: float
    between: float
    num_chunks: int


class ProcessorTime(NamedTuple):
    """Milliseconds of the processor, and what they were spent on."""

    spent: float
    num_streams: int
    num_chunks: int


def main() -> None:
    """Measure and print."""
    options = _options()
    tokenizer = deployment.load(PROFILE).tokenizer.folder
    with serving(deployment.load(PROFILE)) as server:
        url = server.grpc_url
        command = ["tandem", "gateway", "--url", url, "--port", "0", "--tokenizer", str(tokenizer)]
        with (
            _running(*command) as (port, process),
            _running("benchmarks.bare_gateway", url) as (bare_port, bare_process),
        ):
            turns = _turns(url, port, options)
            short = _processor(port, process, 1, options.streams)
            _processor(bare_port, bare_process, 1, options.streams)
            pairs = [
                (
                    _processor(bare_port, bare_process, options.tokens, options.streams),
                    _processor(port, process, options.tokens, options.streams),
                )
                for _ in range(options.repetitions)
            ]
    _print(turns)
    _print_processor(short, pairs, options.streams)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=3, help="default: %(default)s")
    return parser.parse_args()


@contextmanager
def _running(*command: str) -> Iterator[tuple[int, int]]:
    """A gateway in a process of its own: its port, and its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            yield int(greeting.split(" for ")[0].rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def _turns(url: str, port: int, options: argparse.Namespace) -> list[tuple[Stream, Stream]]:
    """Ask both ways, turn by turn; the first turn warms up."""
    inputs: Inputs = {
        tensors.INPUT_IDS: IDS,
        tensors.MAX_TOKENS: options.tokens,
        tensors.STREAM: True,
    }
    with Client(url) as client:
        return [
            (_direct(client, inputs), _through(port, options.tokens))
            for _ in track(range(options.turns + 1), "one stream", transient=True)
        ][1:]


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
    """What the gateway takes of the processor for streams of so many tokens."""
    num_streams = 4 * at_once
    before = _ticks(process)
    with ThreadPoolExecutor(at_once) as clients:
        streams = clients.map(lambda _: _through(port, tokens), range(num_streams))
        num_chunks = sum(stream.num_chunks for stream in streams)
    return ProcessorTime(MS * (_ticks(process) - before) / TICK, num_streams, num_chunks)


def _ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _print(turns: Sequence[tuple[Stream, Stream]]) -> None:
    table = Table("ms", "direct", "through the gateway", "more", title=f"{len(turns)} turns")
    for name in ("first", "between"):
        direct = [getattr(stream, name) for stream, _ in turns]
        through = [getattr(stream, name) for _, stream in turns]
        more = [theirs - ours for ours, theirs in zip(direct, through, strict=True)]
        table.add_row(name, *(f"{statistics.median(v):.2f}" for v in (direct, through, more)))
    Console().print(table)


def _print_processor(
    short: ProcessorTime, pairs: Sequence[tuple[ProcessorTime, ProcessorTime]], at_once: int
) -> None:
    """Print what a chunk takes altogether, by itself, and of the barest gateway."""
    bare, ours = (
        statistics.median(time.spent / time.num_chunks for time in times)
        for times in zip(*pairs, strict=True)
    )
    long = pairs[-1][1]
    chunk = (long.spent - short.spent) / (long.num_chunks - short.num_chunks)
    request = (short.spent - chunk * short.num_chunks) / short.num_streams
    Console().print(
        f"processor, {at_once} streams at once, {long.num_chunks / long.num_streams:.0f} chunks "
        f"each: {ours:.3f} ms a chunk, the barest gateway {bare:.3f}; of ours {chunk:.3f} by "
        f"itself, and {request:.2f} once a request (last of {len(pairs)} turns)"
    )


if __name__ == "__main__":
    main()
