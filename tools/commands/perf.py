"""`tandem perf`: generate load from prompts with Triton's `perf_analyzer`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.target_server import TargetServer, served_drafters
from tandem.tools.client.client import (
    MODEL,
    Client,
    Inputs,
    Value,
    inputs_for,
    is_on_this_machine,
)
from tandem.tools.client.dataset import read_prompts
from tandem.tools.commands.chosen import add_deployment, planned_of
from tandem.tools.commands.options import (
    add_count,
    add_prompts,
    add_url,
    draft_length,
    prompts_file,
    write_json,
)
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.perf_analyzer import PerfAnalyzer, find_perf_analyzer
from tandem.tools.triton.serving import interruptible, serving

FORWARDER = "bls"
RANGE = re.compile(r"[1-9]\d*(:[1-9]\d*){0,2}")


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server)
    server.add_argument(
        "--entry",
        action="append",
        metavar="NAME",
        help="Entry to call; can be repeated (default: bls, then bls_stream).",
    )
    requests = parser.add_argument_group("requests")
    add_prompts(requests)
    add_count(requests, "--limit", "Number of prompts", 8)
    add_count(requests, "--max-tokens", "Maximum output tokens", 128)
    requests.add_argument(
        "--drafter",
        metavar="NAME",
        help="Drafter of every request (default: as served).",
    )
    requests.add_argument(
        "--num-draft-tokens",
        type=draft_length,
        metavar="N",
        help="Draft length, in tokens or auto (default: as served).",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=concurrency,
        default="1",
        metavar="N[:N[:N]]",
        help="Concurrent requests, or begin:end:step (default: %(default)s).",
    )
    add_count(load, "--requests", "Measured requests per concurrency", 32)
    parser.add_argument_group("output").add_argument(
        "--folder", type=Path, metavar="DIR", help="Folder for requests and results."
    )
    parser.add_argument(
        "more", nargs="*", metavar="-- OPTION", help="Options to pass to perf_analyzer."
    )


def concurrency(text: str) -> str:
    if not RANGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be a number or begin:end:step; got {text!r}")
    return text


def run(options: argparse.Namespace) -> int:
    """Run perf_analyzer against each entry; return the last nonzero exit status, or 0."""
    planned = planned_of(options)
    prompts = [p.text for p in read_prompts(prompts_file(options.prompts))[: options.limit]]
    entries = chosen_entries(options.entry, planned)
    check(options, planned, entries)
    drafts: dict[Tensor, Value | None] = {
        tensors.DRAFTER: options.drafter,
        tensors.NUM_DRAFT_TOKENS: options.num_draft_tokens,
    }
    more = {tensor: value for tensor, value in drafts.items() if value is not None}
    status = 0
    with ExitStack() as stack:
        stack.enter_context(interruptible())  # so that perf_analyzer ends too
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tandem-perf-")))
        for name, stream in entries.items():
            requests = [inputs_for(p, options.max_tokens, more, stream=stream) for p in prompts]
            write_requests(requests, folder / f"{name}.json")
        program = find_perf_analyzer()
        url = stack.enter_context(serving(planned)).grpc_url if planned else options.url
        near = {"no_grpc_proxy": url.rpartition(":")[0]} if is_on_this_machine(url) else {}
        for name, stream in entries.items():
            command = perf_command(program, name, url, folder, options, stream=stream)
            print(f"$ {shlex.join(command)}", flush=True)
            ended = subprocess.run(command, check=False, env=os.environ | near)
            status = ended.returncode or status
    return status


def chosen_entries(wanted: Sequence[str] | None, planned: Deployment | None) -> dict[str, bool]:
    """Map the name of each entry to test to whether it streams."""
    streams = {FORWARDER: False, MODEL: True}
    if planned:
        own = [e for e in planned.profile.entries if e.kind == "stream" or e.drafter is None]
        own.sort(key=lambda entry: entry.kind)  # forward comes before stream
        streams = {entry.name: entry.kind == "stream" for entry in own}
    for name in wanted or ():
        if planned and name not in streams:
            raise TandemError(f"entry '{name}' isn't known; choose one of: {', '.join(streams)}")
    return {name: streams.get(name, False) for name in wanted or streams}


def check(
    options: argparse.Namespace, planned: Deployment | None, entries: dict[str, bool]
) -> None:
    """Raise TandemError if the server doesn't respond, or has no such entry or drafter."""
    targets: list[Deployment | TargetServer] = [planned] if planned else []
    if not planned:
        with Client(options.url) as client:
            streams = [name for name in entries if client.entry(name).streams]
        targets += [TargetServer(options.url, name) for name in streams]
    for target in targets if options.drafter is not None else ():
        served_drafters(target).check(options.drafter)


def perf_command(
    program: PerfAnalyzer,
    entry: str,
    url: str,
    folder: Path,
    options: argparse.Namespace,
    *,
    stream: bool,
) -> list[str]:
    """Return the command line of perf_analyzer for an entry.

    perf_analyzer measures a number of requests, not a time window: each answer takes seconds, so a
    window would take minutes to become stable.
    """
    return [
        *program.command,
        *("-m", entry),
        *("-u", url),
        *("-i", "grpc"),
        *(("--async", "--streaming") if stream else ()),
        *("--input-data", str(folder / f"{entry}.json")),
        *("--concurrency-range", options.concurrency),
        *("--request-count", str(options.requests)),
        *("-f", str(folder / f"{entry}.csv")),
        *options.more,
    ]


def write_requests(requests: Sequence[Inputs], path: Path) -> None:
    """Write requests in perf_analyzer's JSON format: one row each, every input as a flat list."""
    rows = [
        {name: list(v) if isinstance(v, list | tuple) else [v] for name, v in inputs.items()}
        for inputs in requests
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TandemError(f"can't create {path.parent}: {error.strerror}") from error
    write_json(path, {"data": rows}, indent=1)
