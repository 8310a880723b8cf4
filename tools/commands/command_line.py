"""Parses the command line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from itertools import takewhile
from typing import NoReturn

from tandem.tools.commands.command_help import COMMANDS, overview
from tandem.tools.errors import TandemError, suggestion


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise TandemError(f"{message}; see {self.prog} --help")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Raises TandemError, which suggests the closest known option.

        Options may be written with underscores, as in NVIDIA's documents: ``--max_output_len``.
        Arguments after ``--`` stay as they are.
        """
        own = [*takewhile(lambda word: word != "--", arguments)]
        dashed = [re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), word) for word in own]
        options, unknown = self.parse_known_args([*dashed, *arguments[len(own) :]])
        known = [name.removeprefix("--") for name in self._option_string_actions]
        for word in unknown:
            name = word.partition("=")[0].removeprefix("--")
            if near := difflib.get_close_matches(name, known, n=1):
                raise TandemError(f"option '--{name}' isn't known; did you mean '--{near[0]}'?")
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options


class _Help(argparse.HelpFormatter):
    """Wraps the description, but keeps the line breaks of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def parser_of(name: str) -> Parser:
    """Return the parser of a command, with its options."""
    command = COMMANDS[name]
    parser = Parser(
        prog=f"tandem {name}",
        description=command.description,
        epilog="\n".join(["examples:", *(f"  {example}" for example in command.examples)]),
        formatter_class=_Help,
        allow_abbrev=False,  # a new option could make an abbreviation ambiguous
    )
    import_module(f".{name}", __package__).add_options(parser)
    return parser


def read(arguments: Sequence[str]) -> Callable[[], int]:
    """Return a callable that runs the command and returns its exit status. Raises TandemError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return lambda: _say(overview())
    if arguments[0] == "--version":
        return lambda: _say(f"tandem {metadata.version('tandem-triton')}")
    name, *rest = arguments
    if name.startswith("-"):
        raise TandemError(
            f"'{name}' must follow the command: tandem COMMAND {name}; see tandem --help"
        )
    if name not in COMMANDS:
        raise TandemError(f"command '{name}' isn't known; {suggestion(name, COMMANDS)}")
    options = parser_of(name).read(rest)
    run = import_module(f".{name}", __package__).run
    return lambda: int(run(options))


def _say(text: str) -> int:
    print(text)
    return 0
