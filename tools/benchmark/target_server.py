"""The server that is measured: one's own, or one that is started for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from tandem.bls.settings import DrafterName
from tandem.tools.client.client import Client
from tandem.tools.commands import up
from tandem.tools.commands.chosen import add_deployment, chosen_deployment
from tandem.tools.commands.generate import MODEL
from tandem.tools.commands.options import add_url
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment


@dataclass(frozen=True)
class Served:
    """A server that answers. url: of its gRPC port."""

    url: str
    entry: str


@dataclass(frozen=True)
class ServedDrafters:
    """What requests to a server may choose. server: what it is called."""

    server: str
    names: Sequence[DrafterName]
    default: DrafterName
    max_draft_len: int


def add_server(parser: argparse.ArgumentParser, *, entry: str = MODEL) -> None:
    """Add the options that say which server it is."""
    group = parser.add_argument_group("server")
    add_deployment(group)
    add_url(group, "The gRPC port of a running server to ask, instead of starting one.")
    group.add_argument(
        "--model",
        metavar="NAME",
        help=f"The entry of that server to ask; needs --url (default: {entry}).",
    )


def planned_of(options: argparse.Namespace) -> Deployment | None:
    """Return what is to be served; None where a server runs already."""
    for name in ("profile", "target"):
        if options.url and getattr(options, name):
            raise TandemError(f"--url and --{name} exclude each other")
    if getattr(options, "model", None) and not options.url:
        raise TandemError("--model needs --url: a profile says what its entries are called")
    return None if options.url else chosen_deployment(options)


def served_drafters(options: argparse.Namespace, planned: Deployment | None) -> ServedDrafters:
    """Return what requests may choose; a running server is asked. Raises TandemError."""
    if planned is not None:
        default = planned.loop_settings().drafter
        longest = planned.target.max_draft_len
        return ServedDrafters(planned.profile.name, planned.drafters, default, longest)
    with Client(options.url) as client:
        entry = client.entry(options.model or MODEL)
    try:
        return ServedDrafters(
            server=options.url,
            names=tuple(json.loads(entry.parameters["drafters"])),
            default=cast("DrafterName", entry.parameters["drafter"]),
            max_draft_len=int(entry.parameters["max_draft_len"]),
        )
    except KeyError as error:
        raise TandemError(
            f"entry '{entry.name}' at {options.url} has no parameter {error}, as Tandem's entries "
            "have; name one of these with --model"
        ) from error


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
