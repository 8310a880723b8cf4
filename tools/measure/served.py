"""The server that is measured: one's own, or one that is started for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .. import deployment, up
from ..deployment import Deployment
from ..errors import TandemError
from ..generate import MODEL
from ..options import add_profile, chosen_profile


@dataclass(frozen=True)
class Served:
    """A server that answers. url: of its gRPC port."""

    url: str
    entry: str


def add_server(parser: argparse.ArgumentParser, *, entry: str = MODEL) -> None:
    """Add the options that say which server it is."""
    add_profile(parser)
    parser.add_argument("--url", help="ask a running server, by its gRPC port, instead")
    parser.add_argument(
        "--model", metavar="NAME", help=f"its entry; with --url only (default: {entry})"
    )


def planned_of(options: argparse.Namespace) -> Deployment | None:
    """Return what is to be served; None where a server runs already."""
    if options.url and options.profile:
        raise TandemError("--url and --profile exclude each other")
    if getattr(options, "model", None) and not options.url:
        raise TandemError("--model needs --url: a profile says what its entries are called")
    return None if options.url else deployment.load(chosen_profile(options))


@contextmanager
def served(options: argparse.Namespace, planned: Deployment | None) -> Iterator[Served]:
    """Serve for as long as the context lasts, where it is ours to serve."""
    if planned is None:
        yield Served(options.url, options.model or MODEL)
        return
    with up.serving(planned) as server:
        yield Served(server.grpc_url, planned.stream_entry.name)


def name_of(options: argparse.Namespace, planned: Deployment | None) -> str:
    """Say what is measured; emulated engines are called so."""
    if planned is None:
        return str(options.url)
    emulated = planned.target.parameters.get("engine") == "emulated"
    return f"{planned.profile.name} (emulated engines)" if emulated else planned.profile.name
