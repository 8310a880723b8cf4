"""Starts and stops the server of a deployment, with a status line on a terminal."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton import repository
from tandem.tools.triton.launch import prepared_launch
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Ports, TritonServer, uninterrupted


def start(planned: Deployment, models: Path, ports: Ports, address: str) -> TritonServer:
    """Start a server, show its progress, and return it when it is ready."""
    launch = prepared_launch(planned.profile)
    with _status("starting Triton") as show:
        server = TritonServer(
            models,
            thread_pool_size=planned.thread_pool_size,
            ports=ports,
            address=address,
            startup_timeout=planned.profile.timeouts.startup,
            launch=launch,
            on_progress=show,
        )
        server.start()
    return server


def stop(server: TritonServer) -> None:
    """Stop a server and show what it is waiting for. Ctrl-C kills the server."""
    try:
        with _status("stopping Triton (Ctrl-C kills it)") as show:
            server.stop(show)
    finally:
        server.kill()


@contextmanager
def serving(planned: Deployment) -> Iterator[TritonServer]:
    """Serve a deployment on free ports within the context."""
    # Handle signals before anything starts, so that no signal leaves a server running.
    with interruptible(), linked_repository(planned) as models:
        server = start(planned, models, ANY_PORTS, LOOPBACK)
        try:
            yield server
        finally:
            stop(server)


@contextmanager
def linked_repository(planned: Deployment) -> Iterator[Path]:
    """Render a deployment, with links, into a temporary folder for the duration of the context."""
    folder = tempfile.mkdtemp(prefix="tandem-repository-")
    try:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        yield models
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, unless they are ignored."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _status(title: str) -> Iterator[Callable[[str], None]]:
    """Show a title. Yield a function that adds text to it on a terminal."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.print(title)
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")
