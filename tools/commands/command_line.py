"""Parses the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module, metadata

from tandem.tools.commands.options import parser_of
from tandem.tools.commands.verbs import VERBS, overview
from tandem.tools.errors import TandemError, suggestion


def read(arguments: Sequence[str]) -> Callable[[], int]:
    """Return a callable that runs the command and returns its exit status; raise TandemError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return lambda: _say(overview())
    if arguments[0] == "--version":
        return lambda: _say(f"tandem {metadata.version('tandem-triton')}")
    name, *rest = arguments
    if name.startswith("-"):
        raise TandemError(
            f"'{name}' must follow the command: tandem COMMAND {name}; see tandem --help"
        )
    if name not in VERBS:
        raise TandemError(f"command '{name}' isn't known; {suggestion(name, VERBS)}")
    module = import_module(f".{name}", __package__)
    parser = parser_of(name)
    module.add_options(parser)
    options = parser.read(rest)
    return lambda: int(module.run(options))


def _say(text: str) -> int:
    print(text)
    return 0
