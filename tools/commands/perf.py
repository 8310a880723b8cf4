"""Put load on the entries of a server with Triton's perf_analyzer.

Its exit status is returned.

    tandem perf --url 127.0.0.1:8001 --concurrency 16
    tandem perf --url 127.0.0.1:8001 --folder results -- --percentile=99
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.load_generator import measured_server
from tandem.tools.client.client import (
    MODEL,
    Client,
    Inputs,
    Value,
    inputs_for,
    is_on_this_machine,
)
from tandem.tools.client.dataset import read_prompts
from tandem.tools.commands.options import (
    add_count,
    add_deployment,
    add_prompts,
    add_url,
    deployment_to_serve,
    draft_length,
    nonempty_path,
    prompts_file,
    write_json,
)
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.signals import handle_signals
from tandem.tools.triton.install import find_perf_analyzer
from tandem.tools.triton.server import serving

FORWARDER = "bls"
POLL_SECONDS = 0.05


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server)
    server.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="Entry to call; can be repeated (default: bls, then bls_stream).",
    )
    requests = parser.add_argument_group("requests")
    add_prompts(requests, "one per line, or JSONL")
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
    add_count(load, "--concurrency", "Number of concurrent requests", 1)
    add_count(load, "--requests", "Number of measured requests", 32)
    parser.add_argument_group("output").add_argument(
        "--folder", type=nonempty_path, metavar="DIR", help="Folder for requests and results."
    )
    parser.add_argument(
        "more", nargs="*", metavar="-- OPTION", help="Options to pass to perf_analyzer."
    )


def run(options: argparse.Namespace) -> int:
    """Run perf_analyzer against each entry; return the last nonzero exit status, or 0."""
    deployment = deployment_to_serve(options)
    prompts = [p.text for p in read_prompts(prompts_file(options.prompts))[: options.limit]]
    entries = entries_to_call(options.model, options.url, deployment)
    if options.drafter is not None:
        measured = measured_server(deployment, options.url, next(iter(entries)))
        measured.check_drafter(options.drafter)
    drafts: dict[Tensor, Value | None] = {
        tensors.DRAFTER: options.drafter,
        tensors.NUM_DRAFT_TOKENS: options.num_draft_tokens,
    }
    more = {tensor: value for tensor, value in drafts.items() if value is not None}
    status = 0
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tandem-perf-")))
        for name, stream in entries.items():
            requests = [inputs_for(p, options.max_tokens, more, stream=stream) for p in prompts]
            write_requests(requests, folder / f"{name}.json")
        program = find_perf_analyzer()
        server = stack.enter_context(serving(deployment)) if deployment else None
        url = server.grpc_url if server else options.url
        near = {"no_grpc_proxy": url.rpartition(":")[0]} if is_on_this_machine(url) else {}
        for name, stream in entries.items():
            # Measure a number of requests instead of a time window: each answer takes seconds, so a
            # window would take minutes to become stable.
            command = [
                *program,
                *("-m", name),
                *("-u", url),
                *("-i", "grpc"),
                *(("--async", "--streaming") if stream else ()),
                *("--input-data", str(folder / f"{name}.json")),
                *("--concurrency-range", str(options.concurrency)),
                *("--request-count", str(options.requests)),
                *("-f", str(folder / f"{name}.csv")),
                *options.more,
            ]
            print(f"$ {shlex.join(command)}", flush=True)
            status = run_until_signal(command, os.environ | near) or status
        if status and server:
            server.check()
    return status


def run_until_signal(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program and return its exit status. A signal kills it and raises KeyboardInterrupt.

    The handler doesn't raise, because an exception within `Popen()` would lose the process.
    """
    signals: list[int] = []
    with (
        handle_signals(lambda number, _: signals.append(number)),
        subprocess.Popen(command, env=environment) as program,
    ):
        while program.poll() is None and not signals:
            time.sleep(POLL_SECONDS)
        if signals:
            program.kill()
    if signals:
        raise KeyboardInterrupt
    return program.returncode


def entries_to_call(
    names: Sequence[str] | None, url: str, deployment: Deployment | None
) -> dict[str, bool]:
    """Map the name of each entry to whether it streams.

    names: the user's choice. Raises TandemError if the server doesn't respond or lacks an entry.
    """
    if deployment is None:
        with Client(url) as client:
            return {name: client.entry(name).streams for name in names or (FORWARDER, MODEL)}
    own = {
        entry.name: entry.kind == "stream"
        for entry in sorted(deployment.profile.entries, key=lambda entry: entry.kind)
        if entry.kind == "stream" or entry.drafter is None
    }
    for name in names or ():
        if name not in own:
            raise TandemError(f"entry '{name}' isn't known; choose one of: {', '.join(own)}")
    return {name: own[name] for name in names or own}


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
    write_json(path, {"data": rows})
