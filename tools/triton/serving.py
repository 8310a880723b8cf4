"""Starts and stops a server of a deployment, and shows on a terminal how far it is."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton import repository
from tandem.tools.triton.launch import prepared_launch
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Ports, Progress, TritonServer


def start(planned: Deployment, models: Path, ports: Ports, address: str) -> TritonServer:
    """Start a server, showing its progress; return it once it is ready."""
    launch = prepared_launch(planned.profile)
    with _progress_line("starting Triton") as tell:
        server = TritonServer(
            models,
            thread_pool_size=planned.thread_pool_size,
            ports=ports,
            address=address,
            startup_timeout=planned.profile.timeouts.startup,
            launch=launch,
            on_progress=lambda progress: tell(*_describe(progress)),
        )
        server.start()
    return server


def stop(server: TritonServer) -> None:
    """Stop a server, showing what it waits for; an interrupt meanwhile kills it."""
    try:
        with _progress_line("stopping Triton (Ctrl-C again kills it)") as tell:
            server.stop(lambda names, seconds: tell("", _waiting(names, seconds)))
    finally:
        server.kill()


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
            stop(server)


@contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let signals raise KeyboardInterrupt, as Ctrl-C does, for as long as the context lasts."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _progress_line(title: str) -> Iterator[Callable[[str, str], None]]:
    """Show how something goes on: in one line of a terminal, else in a line for each state.

    Yields what is to be called with a state, and with details that only a terminal shows.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(title) as status:
            yield lambda state, details: status.update(f"{title}: {state}{details}")
        return
    console.print(title)
    said: set[str] = set()

    def say(state: str, _: str) -> None:
        if state and state not in said:
            console.print(f"{title}: {state}")
        said.add(state)

    yield say


def _describe(progress: Progress) -> tuple[str, str]:
    missing = sorted(progress.models - progress.loaded)
    ready = len(progress.models) - len(missing)
    waiting = f", waiting for {', '.join(missing)}" if missing else ""
    return f"{ready} of {len(progress.models)} models", f"{waiting} ({progress.seconds:.0f} s)"


def _waiting(names: Sequence[str], seconds: float) -> str:
    return f"waiting for {', '.join(names)} ({seconds:.0f} s)"
