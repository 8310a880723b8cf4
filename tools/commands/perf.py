"""`tandem perf`: load from Triton's own `perf_analyzer`, with requests made from the profile."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.target_server import TargetServer, served_drafters
from tandem.tools.client.client import Client, Inputs, Value, is_on_this_machine
from tandem.tools.client.dataset import read_prompts
from tandem.tools.client.request import MODEL, URL, inputs_for
from tandem.tools.commands.chosen import add_deployment, planned_of
from tandem.tools.commands.measuring import check_drafter, draft_length, prompts_file
from tandem.tools.commands.options import add_url, at_least_one
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.perf_analyzer import (
    PROGRAM,
    PerfAnalyzer,
    expected_perf_analyzer,
    find_perf_analyzer,
    is_unpacked,
)
from tandem.tools.triton.serving import serving

FORWARDER = "bls"
RANGE = re.compile(r"[1-9]\d*(:[1-9]\d*){0,2}")


class Load(NamedTuple):
    """What one run of a load generator sends, and where to. stream: in chunks."""

    entry: str
    stream: bool
    inputs: Sequence[Inputs]
    concurrency: str
    num_requests: int

    @property
    def file_name(self) -> str:
        return f"{self.entry}.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server, "The gRPC port of a running server to ask, instead of starting one.")
    server.add_argument(
        "--entry",
        action="append",
        metavar="NAME",
        help="The entry to ask; can be repeated (default: bls, then bls_stream).",
    )
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="The prompts: one per line, or JSONL (default: the demo's).",
    )
    requests.add_argument(
        "--limit",
        type=at_least_one,
        default=8,
        metavar="N",
        help="The number of prompts (default: %(default)s).",
    )
    requests.add_argument(
        "--max-tokens",
        type=at_least_one,
        default=128,
        metavar="N",
        help="The longest answer, in tokens (default: %(default)s).",
    )
    requests.add_argument(
        "--drafter",
        metavar="NAME",
        help="The drafter of every request (default: as served).",
    )
    requests.add_argument(
        "--num-draft-tokens",
        type=draft_length,
        metavar="N",
        help="The draft length, in tokens or auto (default: as served).",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=concurrency,
        default="1",
        metavar="N[:N[:N]]",
        help="The number of requests at once, or begin:end:step (default: %(default)s).",
    )
    load.add_argument(
        "--requests",
        type=at_least_one,
        default=32,
        metavar="N",
        help="The number of requests to measure at each concurrency (default: %(default)s).",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--folder", type=Path, metavar="DIR", help="The folder to keep requests and results in."
    )
    output.add_argument(
        "--dry-run",
        action="store_true",
        help="Write the requests into --folder and print the commands; start nothing.",
    )
    parser.add_argument(
        "more", nargs="*", metavar="-- OPTION", help="Options for perf_analyzer itself."
    )


def run(options: argparse.Namespace) -> int:
    """Run the load generator against each entry; return its last bad exit status, or 0."""
    if options.dry_run and options.folder is None:
        raise TandemError(
            "--dry-run needs --folder DIR: the printed commands read the requests there"
        )
    planned = planned_of(options)
    loads = loads_for(options, planned)
    if options.dry_run:
        _print_commands(options, loads)
        return 0
    if planned is None:
        _check_entries(options, loads)
    with _folder(options) as folder:
        for load in loads:
            write_requests(load, folder)
        program = find_perf_analyzer()
        with _serving(options, planned) as url:
            statuses = [_generate(program, load, url, folder, options) for load in loads]
    return next((status for status in reversed(statuses) if status), 0)


def concurrency(text: str) -> str:
    if not RANGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor begin:end:step")
    return text


def loads_for(options: argparse.Namespace, planned: Deployment | None) -> list[Load]:
    prompts = read_prompts(prompts_file(options.prompts))[: options.limit]
    streams = _entries(planned)
    entries = options.entry or list(streams)
    unknown = [name for name in entries if planned and name not in streams]
    if unknown:
        raise TandemError(f"no entry '{unknown[0]}'; the profile has {', '.join(streams)}")
    more: dict[Tensor, Value] = {}
    if options.drafter is not None:
        if planned:
            check_drafter(served_drafters(planned), options.drafter)
        more[tensors.DRAFTER] = options.drafter
    if options.num_draft_tokens is not None:
        more[tensors.NUM_DRAFT_TOKENS] = options.num_draft_tokens
    return [
        Load(
            entry=name,
            stream=stream,
            inputs=[inputs_for(p, options.max_tokens, more, stream=stream) for p in prompts],
            concurrency=options.concurrency,
            num_requests=options.requests,
        )
        for name in entries
        for stream in [streams.get(name, name == MODEL)]
    ]


def perf_command(
    program: PerfAnalyzer, load: Load, url: str, folder: Path, more: Sequence[str]
) -> list[str]:
    """Return the command line of perf_analyzer for a load.

    A count of requests, rather than a time: an answer takes seconds, and a window that must settle
    would take minutes.
    """
    streaming = ["--async", "--streaming"] if load.stream else []
    return [
        *program.command,
        *("-m", load.entry),
        *("-u", url),
        *("-i", "grpc"),
        *streaming,
        *("--input-data", str(folder / load.file_name)),
        *("--concurrency-range", load.concurrency),
        *("--request-count", str(load.num_requests)),
        *("-f", str(folder / f"{load.entry}.csv")),
        *more,
    ]


def write_requests(load: Load, folder: Path) -> None:
    """Write what is sent as perf_analyzer reads it: a row a request, its inputs as flat lists."""
    rows = [{name: _flat(value) for name, value in inputs.items()} for inputs in load.inputs]
    path = folder / load.file_name
    try:
        path.write_text(json.dumps({"data": rows}, indent=1) + "\n")
    except OSError as error:
        raise TandemError(f"cannot write {path}: {error.strerror}") from error


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _entries(planned: Deployment | None) -> dict[str, bool]:
    """Names of the entries with the deployment's own drafter -> whether they stream."""
    if planned is None:
        return {FORWARDER: False, MODEL: True}
    entries = planned.profile.entries
    own = [entry for entry in entries if entry.kind == "stream" or entry.drafter is None]
    own.sort(key=lambda entry: entry.kind)  # forward comes before stream
    return {entry.name: entry.kind == "stream" for entry in own}


def _print_commands(options: argparse.Namespace, loads: Sequence[Load]) -> None:
    program = expected_perf_analyzer()
    if not is_unpacked(program):
        print(f"tandem: {PROGRAM} is not here yet; tandem perf fetches it", file=sys.stderr)
        program = PerfAnalyzer(Path(PROGRAM))
    with _folder(options) as folder:
        for load in loads:
            write_requests(load, folder)
            print(shlex.join(perf_command(program, load, options.url or URL, folder, options.more)))


def _check_entries(options: argparse.Namespace, loads: Sequence[Load]) -> None:
    """Raise TandemError where no server answers, or one without these entries or the drafter."""
    with Client(options.url) as client:
        streams = [load.entry for load in loads if client.entry(load.entry).streams]
    if options.drafter is not None:
        for entry in streams:
            check_drafter(served_drafters(TargetServer(options.url, entry)), options.drafter)


def _generate(
    program: PerfAnalyzer, load: Load, url: str, folder: Path, options: argparse.Namespace
) -> int:
    command = perf_command(program, load, url, folder, options.more)
    print(f"$ {shlex.join(command)}", flush=True)
    near = {"no_grpc_proxy": url.rpartition(":")[0]} if is_on_this_machine(url) else {}
    return subprocess.run(command, check=False, env=os.environ | near).returncode


@contextmanager
def _serving(options: argparse.Namespace, planned: Deployment | None) -> Iterator[str]:
    if planned is None:
        yield options.url
        return
    with serving(planned) as server:
        yield server.grpc_url


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """Where requests and results lie; for good if that is wanted."""
    if options.folder is not None:
        try:
            options.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TandemError(f"cannot make {options.folder}: {error.strerror}") from error
        yield options.folder
    else:
        with tempfile.TemporaryDirectory(prefix="tandem-perf-") as folder:
            yield Path(folder)
