"""`tandem up`: serve a profile, or one's own checkpoints, until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from . import deployment, repository
from .deployment import Deployment
from .errors import TandemError
from .options import Verbs, add_profile, chosen_profile, port
from .server import ANY_PORTS, LOOPBACK, Ports, Progress, TritonServer
from .trtllm.launch import prepared_launch


def register(verbs: Verbs) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser("up", help="start Triton and serve until Ctrl-C")
    add_profile(parser)
    parser.add_argument(
        "--target", type=Path, metavar="DIR", help="a Hugging Face checkpoint, instead of a profile"
    )
    parser.add_argument(
        "--draft", type=Path, metavar="DIR", help="a smaller one that drafts for it"
    )
    parser.add_argument("--address", default=LOOPBACK, help="listen here (default: %(default)s)")
    for name, number in vars(Ports()).items():
        parser.add_argument(
            f"--{name}-port", type=port, default=number, help="default: %(default)s"
        )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit status."""
    # Before anything starts: a signal must never leave a server behind. SIGINT is among them
    # because a shell starts what runs in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    planned = _plan(options)
    with tempfile.TemporaryDirectory(prefix="tandem-up-") as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        try:
            _serve(planned, models, options)
        except KeyboardInterrupt:
            return 0
    return 0


def start(planned: Deployment, models: Path, ports: Ports, address: str) -> TritonServer:
    """Start a server, showing one line of progress; return it once it is ready."""
    console = Console(stderr=True)
    launch = prepared_launch(planned.profile)
    with console.status("starting Triton") as status:
        server = TritonServer(
            models,
            thread_pool_size=planned.thread_pool_size,
            ports=ports,
            address=address,
            launch=launch,
            on_progress=lambda progress: status.update(_describe(progress)),
        )
        server.start()
    return server


@contextmanager
def serving(planned: Deployment) -> Iterator[TritonServer]:
    """Serve a deployment on free ports for as long as the context lasts."""
    # Before anything starts: a signal must never leave a server behind.
    with (
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="tandem-serving-") as folder,
    ):
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        server = start(planned, models, ANY_PORTS, LOOPBACK)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let signals raise KeyboardInterrupt, as Ctrl-C does, for as long as the context lasts."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _plan(options: argparse.Namespace) -> Deployment:
    if options.target is None:
        if options.draft is not None:
            raise TandemError("--draft needs --target, the model that it drafts for")
        return deployment.load(chosen_profile(options))
    if options.profile is not None:
        raise TandemError("--profile and --target exclude each other")
    return deployment.for_checkpoints(options.target, options.draft)


def _serve(planned: Deployment, models: Path, options: argparse.Namespace) -> None:
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    server = start(planned, models, ports, options.address)
    try:
        print(_greeting(server, planned), flush=True)
        server.wait()
    finally:
        Console(stderr=True).print("stopping Triton", highlight=False)
        server.stop()


def _describe(progress: Progress) -> str:
    missing = sorted(progress.models - progress.loaded)
    ready = len(progress.models) - len(missing)
    waiting = f", waiting for {', '.join(missing)}" if missing else ""
    return f"Triton: {ready} of {len(progress.models)} models{waiting} ({progress.seconds:.0f} s)"


def _greeting(server: TritonServer, planned: Deployment) -> str:
    entry = planned.stream_entry.name
    command = f"  command  {shlex.join(server.command)}\n" if _on_tensorrt(planned) else ""
    return (
        f"serving {planned.profile.name}; stop with Ctrl-C\n"
        f"  HTTP     http://{server.http_url}\n"
        f"  gRPC     {server.grpc_url}\n"
        f"  metrics  {server.metrics_url}\n"
        f"  log      {server.log.path}\n"
        f"{command}"
        "try:\n"
        f"  curl -N http://{server.http_url}/v2/models/{entry}/generate_stream "
        """-d '{"text_input": "def main():", "max_tokens": 64, "stream": true}'"""
    )


def _on_tensorrt(planned: Deployment) -> bool:
    """Whether how it is launched is worth a line: several processes, or one as NVIDIA wants it."""
    return "tensorrtllm" in (planned.target.backend, planned.draft and planned.draft.backend)
