"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import tandem
from tandem.bls.drafters.registry import BASELINE, DRAFTERS
from tandem.bls.settings import AUTO
from tandem.tools.errors import TandemError, suggestion

Options: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
PROFILES = Path(tandem.__file__).parent / "profiles"
EMBEDDED = PROFILES / "embedded.yaml"
DEMO = PROFILES.parent / "demo"
PROMPTS = DEMO / "prompts.jsonl"
# Extensions of a profile file. Names can contain dots too, such as llama-3.1-70b.
ENDINGS = (".yaml", ".yml")
MAX_PORT = 65535


def nonempty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def nonempty_path(text: str) -> Path:
    return Path(nonempty(text))  # an empty path is the current folder


def grpc_url(text: str) -> str:
    scheme, mark, rest = text.rpartition("://")
    host, _, number = rest.rstrip("/").rpartition(":")
    right = f"{host or rest.rstrip('/')}:{number if host else 8001}"
    if mark:
        raise argparse.ArgumentTypeError(
            f"must be HOST:PORT, without {scheme}://; use --url {right}"
        )
    if not (_is_host(host) and _is_port(number)) or "/" in text:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as 127.0.0.1:8001; got {text!r}")
    return text


def output_file(text: str) -> Path:
    """Read the path of a file to write, and check it before a long measurement."""
    path = nonempty_path(text)
    folder = path.absolute().parent
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"can't write {text}: it is a folder")
    if not path.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"can't write {text}: no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"can't write {text}: Permission denied")
    return path


def write_json(path: Path, content: object) -> None:
    """Write a file. If the disk is full, keep an earlier one and raise TandemError."""
    data = (json.dumps(content, indent=2) + "\n").encode()
    try:
        if not path.is_file():
            path.write_bytes(data)
            return
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, len(data))  # fails before anything is overwritten
            file.write(data)
            file.truncate()
    except OSError as error:
        raise TandemError(f"can't write {path}: {error.strerror}") from error


def drafter_names(*, baseline: bool = False) -> str:
    """List the drafters for a help text. baseline: include the baseline."""
    drafting = [kind.name for kind in DRAFTERS.values() if kind.drafts_in_loop]
    also = [BASELINE.name] if baseline else []
    return ", ".join((*drafting, *also, "or a custom drafter of the deployment"))


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type that reads whole numbers of at least ``minimum``."""

    def read(text: str) -> int:
        with suppress(ValueError):  # int also rejects very long numbers
            if text.isdecimal() and int(text) >= minimum:
                return int(text)
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {minimum}; got {text!r}"
        )

    return read


def finite_number(text: str) -> float:
    """Read a number as an argparse type. NaN and infinity are rejected."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be a finite number; got {text!r}")


def port(text: str) -> int:
    if not _is_port(text):
        raise argparse.ArgumentTypeError(f"must be a port number, or 0 for a free one; got {text}")
    return int(text)


def address(text: str) -> str:
    if not _is_host(text):
        raise argparse.ArgumentTypeError(f"must be an address, such as 127.0.0.1; got {text!r}")
    return text


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT


def _is_host(text: str) -> bool:
    """Return whether Python's sockets accept a host name or address.

    They also accept an empty text, but listen on every address.
    """
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def draft_length(text: str) -> int:
    return AUTO if text == "auto" else at_least(1)(text)


def add_count(
    group: Options, name: str, text: str, default: int | None = None, *, minimum: int = 1
) -> None:
    """Add an option for a whole number. text: the help, to which the default is appended."""
    text = text if default is None else f"{text} (default: %(default)s)."
    group.add_argument(name, type=at_least(minimum), default=default, metavar="N", help=text)


def add_prompts(group: Options, form: str) -> None:
    group.add_argument(
        "--prompts",
        type=nonempty_path,
        metavar="FILE",
        help=f"Prompts: {form} (default: the demo's).",
    )


def prompts_file(given: Path | None) -> Path:
    if given is None and not PROMPTS.is_file():
        raise TandemError(f"no prompts in {PROMPTS}; set --prompts to a file")
    return given or PROMPTS


def add_profile(group: Options) -> None:
    group.add_argument(
        "--profile",
        type=nonempty,
        metavar="FILE|NAME",
        help="Profile to deploy: a file, or a name in profiles/ (default: embedded).",
    )


def add_url(group: Options, default: str | None = None) -> None:
    """Add an option for a running server. default: None if the command can start a server."""
    group.add_argument(
        "--url",
        type=grpc_url,
        metavar="HOST:PORT",
        default=default,
        help="HOST:PORT of Triton's gRPC endpoint (default: %(default)s)."
        if default
        else "HOST:PORT of a running server's gRPC endpoint, instead of starting a server.",
    )


def chosen_profile(options: argparse.Namespace) -> Path:
    if options.profile is None and not EMBEDDED.is_file():
        raise TandemError(f"no {EMBEDDED} here; set --profile to a file")
    return EMBEDDED if options.profile is None else named_profile(options.profile)


def named_profile(given: str) -> Path:
    """Return the path of a profile. given: a file, or a name in `profiles/`."""
    path = Path(given)
    if "/" in given or path.suffix in ENDINGS or path.is_file():
        return path
    shipped = sorted(file.stem for file in PROFILES.glob("*.yaml"))
    if given in shipped:
        return PROFILES / f"{given}.yaml"
    if path.is_dir():
        return path
    raise TandemError(f"profile '{given}' isn't known; {suggestion(given, shipped)}")
