"""The options that say what to deploy: a profile, or one's own checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.tools.commands.options import Options, add_profile, chosen_profile
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
