"""Options that several verbs share, and how a wrong one is reported."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn, TypeAlias

from .errors import TandemError

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
EMBEDDED = Path(__file__).resolve().parent.parent / "profiles" / "embedded.yaml"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Raise TandemError with what was wrong and where help is."""
        raise TandemError(f"{message}; see {self.prog} --help")


def port(text: str) -> int:
    """Return a port; 0 picks a free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port (0 picks a free one)")
    return int(text)


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add ``--profile``; the default is the embedded one of the checkout."""
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="what to deploy (default: embedded)"
    )


def chosen_profile(options: argparse.Namespace) -> Path:
    """Return the profile's file; raise TandemError where there is no default to take."""
    if options.profile is None and not EMBEDDED.is_file():
        raise TandemError(f"no {EMBEDDED}; say which profile to take with --profile FILE")
    return options.profile or EMBEDDED
