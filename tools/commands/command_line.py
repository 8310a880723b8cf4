"""Reads the command line: which command, and with what options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module, metadata

from tandem.tools.commands.options import dashed, parser_of
from tandem.tools.commands.verbs import VERBS, overview
from tandem.tools.errors import TandemError


def read(arguments: Sequence[str]) -> Callable[[], int]:
    """Return what the arguments ask for, ready to be called; raise TandemError.

    A command's module is imported only if it is the one: a command imports what takes a second.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        return lambda: _say(overview())
    if arguments[0] == "--version":
        return lambda: _say(f"tandem {metadata.version('tandem-triton')}")
    name, *rest = arguments
    if name.startswith("-"):
        raise TandemError(
            f"'{name}' stands before the command; say tandem COMMAND {name}, see tandem --help"
        )
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(VERBS)}"
        raise TandemError(f"no command '{name}'; {hint}")
    module = import_module(f".{name}", __package__)
    parser = parser_of(name)
    module.add_options(parser)
    options = parser.parse_args(dashed(rest))
    return lambda: int(module.run(options))


def _say(text: str) -> int:
    print(text)
    return 0
