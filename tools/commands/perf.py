"""`tandem perf`: load from Triton's own `perf_analyzer`, with requests made from the profile."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.target_server import TargetServer, served_drafters
from tandem.tools.client.client import (
    MODEL,
    URL,
    Client,
    Inputs,
    Value,
    inputs_for,
    is_on_this_machine,
)
from tandem.tools.client.dataset import read_prompts
from tandem.tools.commands.chosen import add_deployment, planned_of
from tandem.tools.commands.measuring import check_drafter, draft_length, prompts_file
from tandem.tools.commands.options import add_count, add_url, write_json
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


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server)
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
    add_count(requests, "--limit", "The number of prompts", 8)
    add_count(requests, "--max-tokens", "The longest answer, in tokens", 128)
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
    add_count(load, "--requests", "The number of requests to measure at each concurrency", 32)
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
    prompts = read_prompts(prompts_file(options.prompts))[: options.limit]
    entries = chosen_entries(options.entry, planned)
    if planned and options.drafter is not None:
        check_drafter(served_drafters(planned), options.drafter)
    if not (planned or options.dry_run):
        _check_entries(options, entries)
    drafts: dict[Tensor, Value | None] = {
        tensors.DRAFTER: options.drafter,
        tensors.NUM_DRAFT_TOKENS: options.num_draft_tokens,
    }
    more = {tensor: value for tensor, value in drafts.items() if value is not None}
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tandem-perf-")))
        for name, stream in entries.items():
            requests = [inputs_for(p, options.max_tokens, more, stream=stream) for p in prompts]
            write_requests(requests, folder / f"{name}.json")
        if options.dry_run:
            program, url = _expected_program(), options.url or URL
        else:
            program = find_perf_analyzer()
            url = stack.enter_context(serving(planned)).grpc_url if planned else options.url
        status = 0
        for name, stream in entries.items():
            command = perf_command(program, name, url, folder, options, stream=stream)
            if options.dry_run:
                print(shlex.join(command))
                continue
            print(f"$ {shlex.join(command)}", flush=True)
            near = {"no_grpc_proxy": url.rpartition(":")[0]} if is_on_this_machine(url) else {}
            ended = subprocess.run(command, check=False, env=os.environ | near)
            status = ended.returncode or status
    return status


def concurrency(text: str) -> str:
    if not RANGE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor begin:end:step")
    return text


def chosen_entries(wanted: Sequence[str] | None, planned: Deployment | None) -> dict[str, bool]:
    """Return the entries to ask -> whether they stream.

    Without a choice, these are the entries that use the deployment's own drafter.
    """
    streams = {FORWARDER: False, MODEL: True}
    if planned:
        own = [e for e in planned.profile.entries if e.kind == "stream" or e.drafter is None]
        own.sort(key=lambda entry: entry.kind)  # forward comes before stream
        streams = {entry.name: entry.kind == "stream" for entry in own}
    for name in wanted or ():
        if planned and name not in streams:
            raise TandemError(f"no entry '{name}'; the profile has {', '.join(streams)}")
    return {name: streams.get(name, False) for name in wanted or streams}


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

    It gets a number of requests instead of a time: an answer takes seconds, and a window that must
    settle would take minutes.
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
    """Write requests as perf_analyzer reads them: a row each, with every input as a flat list."""
    rows = [
        {name: list(v) if isinstance(v, list | tuple) else [v] for name, v in inputs.items()}
        for inputs in requests
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TandemError(f"cannot make {path.parent}: {error.strerror}") from error
    write_json(path, {"data": rows}, indent=1)


def _expected_program() -> PerfAnalyzer:
    """Return the program to print: where it is, or its bare name if it must be fetched first."""
    program = expected_perf_analyzer()
    if is_unpacked(program):
        return program
    print(f"tandem: {PROGRAM} is not here yet; tandem perf fetches it", file=sys.stderr)
    return PerfAnalyzer(Path(PROGRAM))


def _check_entries(options: argparse.Namespace, entries: Collection[str]) -> None:
    """Raise TandemError if no server answers, or it lacks one of the entries or the drafter."""
    with Client(options.url) as client:
        streams = [name for name in entries if client.entry(name).streams]
    if options.drafter is not None:
        for name in streams:
            check_drafter(served_drafters(TargetServer(options.url, name)), options.drafter)
