"""Serves a deployment, with a status line on a terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tandem.tools.errors import TandemError
from tandem.tools.folders import TemporaryFolder, remove_leftovers
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.signals import handle_signals
from tandem.tools.triton import repository
from tandem.tools.triton.launch import check_launch
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Ports, TritonServer


@contextmanager
def serving(
    deployment: Deployment, ports: Ports = ANY_PORTS, address: str = LOOPBACK
) -> Iterator[TritonServer]:
    """Yield a server that serves a deployment until the context ends.

    A second Ctrl-C while the server stops kills it.
    """
    check_launch(deployment.profile)
    remove_leftovers()
    with linked_repository(deployment) as models:
        with status_line("starting Triton") as show:
            server = TritonServer(
                models,
                thread_pool_size=deployment.thread_pool_size,
                ports=ports,
                address=address,
                startup_timeout=deployment.profile.timeouts.startup,
                profile=deployment.profile,
                on_progress=show,
            )
            server.start()
        draft = deployment.profile.models.draft  # without it, the target decodes alone
        threading.Thread(target=server.watch, args=[[draft]], daemon=True).start()
        try:
            yield server
        except TandemError:
            server.check()  # if Triton has ended, this is the reason for the client's error
            raise
        finally:
            try:
                with status_line("stopping Triton (Ctrl-C kills it)") as show:
                    server.stop(show)
            finally:
                server.kill()
                if server.failure:  # also the result if Ctrl-C followed
                    raise server.failure


@contextmanager
def linked_repository(deployment: Deployment) -> Iterator[Path]:
    """Render a deployment, with links, into a temporary folder for the duration of the context."""
    folder = TemporaryFolder()
    try:
        models = folder.path / "repository"
        repository.render(deployment, models, link=True)
        yield models
    finally:
        with handle_signals(signal.SIG_IGN):  # a second signal must not interrupt the cleanup
            folder.remove()


@contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """Show a title. Yield a function that adds text to it on a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.print(title)
    with console.status(escape(title)) as status:
        yield lambda text: status.update(escape(f"{title}: {text}"))
