"""Parses the command line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from itertools import takewhile
from typing import NoReturn

from tandem.tools.errors import UsageError, suggestion

COMMANDS = (  # the module of a command has its name
    *("up", "generate", "gateway", "run"),
    *("bench", "perf"),
    *("doctor", "render", "build"),
)
OVERVIEW = """\
usage: tandem COMMAND [OPTION...]
       tandem --version

Tandem speeds up language models on Triton Inference Server without changing the output: a small
draft model proposes the next tokens, and the large target verifies them in one step.

first steps:
  tandem doctor                  # check this machine
  tandem bench                   # measure the speedup of the demo's models
  tandem up                      # serve, in one terminal
  tandem generate "def main():"  # generate, in another

serve and generate:
  up         Start Triton and serve until Ctrl-C.
  generate   Stream the output for a prompt from a running server.
  gateway    Serve the OpenAI API and a web page for a running server.
  run        Serve engines, run prompts and stop, like NVIDIA's run.py.

measure:
  bench      Measure speedup and latency on a live server.
  perf       Put load on a server with Triton's perf_analyzer.

deploy:
  doctor     Check what this machine needs to serve.
  render     Write a model repository for another Triton server.
  build      Print the script that builds the TensorRT engines of a profile.

`tandem COMMAND --help` shows options and examples."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # `main` reports the error if the help can't be written
        super().exit(status, message)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Raises UsageError, which suggests the closest known option.

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
                raise UsageError(f"option '--{name}' isn't known; did you mean '--{near[0]}'?")
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options


class _Help(argparse.HelpFormatter):
    """Wraps the description, but keeps the line breaks of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def make_parser(name: str) -> Parser:
    """Return the parser of a command, with its options.

    The docstring of its module has the description and, indented, the examples.
    """
    module = import_module(f".{name}", __package__)
    description, _, examples = (module.__doc__ or "").partition("\n\n    ")
    parser = Parser(
        prog=f"tandem {name}",
        description=" ".join(description.split()),
        epilog=f"examples:\n    {examples}",
        formatter_class=_Help,
        allow_abbrev=False,  # a new option could make an abbreviation ambiguous
    )
    module.add_options(parser)
    return parser


def read(arguments: Sequence[str]) -> Callable[[], int]:
    """Return a callable that runs the command and returns its exit status. Raises UsageError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return lambda: _say(OVERVIEW)
    if arguments[0] == "--version":
        return lambda: _say(f"tandem {metadata.version('tandem-triton')}")
    name, *rest = arguments
    if name.startswith("-"):
        raise UsageError(
            f"'{name}' must follow the command: tandem COMMAND {name}; see tandem --help"
        )
    if name not in COMMANDS:
        raise UsageError(f"command '{name}' isn't known; {suggestion(name, COMMANDS)}")
    options = make_parser(name).read(rest)
    run = import_module(f".{name}", __package__).run
    return lambda: int(run(options))


def _say(text: str) -> int:
    print(text)
    return 0
