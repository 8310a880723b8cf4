"""The options that say what to deploy, or which running server to ask."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.tools.client.request import MODEL
from tandem.tools.commands.options import Options, add_profile, add_url, chosen_profile
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment


def add_deployment(group: Options) -> None:
    """Add ``--profile``, ``--target`` and ``--draft``."""
    add_profile(group)
    group.add_argument(
        "--target",
        type=Path,
        metavar="DIR",
        help="The Hugging Face checkpoint to deploy, instead of a profile.",
    )
    group.add_argument(
        "--draft", type=Path, metavar="DIR", help="The smaller checkpoint that drafts for it."
    )


def chosen_deployment(options: argparse.Namespace) -> Deployment:
    """Return what the options say; raise TandemError."""
    if options.target is None:
        if options.draft is not None:
            raise TandemError("--draft needs --target, the model that it drafts for")
        return deployment.load(chosen_profile(options))
    if options.profile is not None:
        raise TandemError("--profile and --target exclude each other")
    return deployment.for_checkpoints(options.target, options.draft)


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which server it is."""
    group = parser.add_argument_group("server")
    add_deployment(group)
    add_url(group, "The gRPC port of a running server to ask, instead of starting one.")
    group.add_argument(
        "--model",
        metavar="NAME",
        help=f"The entry of that server to ask; needs --url (default: {MODEL}).",
    )


def planned_of(options: argparse.Namespace) -> Deployment | None:
    """Return what is to be served; None where a server runs already."""
    for name in ("profile", "target"):
        if options.url and getattr(options, name):
            raise TandemError(f"--url and --{name} exclude each other")
    if getattr(options, "model", None) and not options.url:
        raise TandemError("--model needs --url: a profile says what its entries are called")
    return None if options.url else chosen_deployment(options)
