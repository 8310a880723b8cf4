"""Record `tandem up` and `tandem generate --explain` in a terminal as docs/demo.svg.

`make pictures` runs this script. Lines appear with their original timing, but pauses are cut to
two seconds.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

FIGURE = Path(__file__).with_name("demo.svg")
ROOT = FIGURE.parents[1]
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # they need another host
ELEMENT = re.compile(r'(<text [^>]*clip-path="url\(#[\w-]+-line-(\d+)\)")')
WIDTH = 118
LONGEST_PAUSE = 2.0  # seconds
SHOWN = {"serving", "target", "draft", "drafter", "length", "page"}  # lines of `tandem up`
WARM_UP = 3  # runs before the recorded one
TYPING = 0.6  # seconds until a command's first line
PORTS = "--http-port 0 --grpc-port 0 --metrics-port 0 --gateway-port 0"
UP = "tandem up"
GENERATE = 'tandem generate "def __repr__(self):" --max-tokens 48 --explain'
ANIMATION = """
    @keyframes appear { from { opacity: 0 } to { opacity: 1 } }
    @media (prefers-reduced-motion: reduce) { text { animation: none !important } }
"""


class PrintedLine(NamedTuple):
    """A line of the terminal. pause: seconds since the previous line."""

    text: Text
    pause: float


def main() -> None:
    lines = [_prompt(UP)]
    server = subprocess.Popen(
        [sys.executable, "-m", "tandem", *shlex.split(f"up {PORTS}")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        greeting, address = _greeting(server)
        lines += [*greeting, PrintedLine(Text(), 0.1), _prompt(GENERATE)]
        command = shlex.split(f"{GENERATE} --url {address}")
        for _ in range(WARM_UP):
            subprocess.run([sys.executable, "-m", *command], capture_output=True, check=True)
        lines += _run_in_terminal(command)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    lines = [
        PrintedLine(part, 0.0 if number else line.pause)
        for line in lines
        for number, part in enumerate(line.text.wrap(console, WIDTH))
    ]
    for line in lines:
        console.print(line.text, no_wrap=True)
    drawn = FONTS.sub("", console.export_svg(title="Tandem"))
    FIGURE.write_text(_animate(drawn, [line.pause for line in lines]))


def _prompt(command: str) -> PrintedLine:
    return PrintedLine(Text.assemble(("$ ", "bold green"), (command, "bold")), LONGEST_PAUSE)


def _greeting(server: subprocess.Popen[str]) -> tuple[list[PrintedLine], str]:
    """Return the lines that `tandem up` prints when it is ready, and its gRPC address."""
    assert server.stdout
    before, lines = time.monotonic(), []
    for printed in server.stdout:
        now = time.monotonic()
        first, *rest = printed.split()
        if first in SHOWN:
            text = printed.rstrip("\n").replace(f"{ROOT}/", "")
            text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)
            lines.append(PrintedLine(Text.from_ansi(text), max(0.1, now - before)))
            before = now
        if first == "gRPC":
            return lines, rest[0]
    raise SystemExit("tandem up ended")


def _run_in_terminal(command: list[str]) -> Iterator[PrintedLine]:
    """Run a `tandem` command in a terminal, and yield its lines as they are printed."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    before, pause = time.monotonic(), TYPING
    with open(ours, encoding="utf-8", newline="") as terminal:
        try:
            for printed in terminal:
                now = time.monotonic()
                yield PrintedLine(Text.from_ansi(printed.rstrip("\r\n")), pause + now - before)
                before, pause = now, 0.1
        except OSError:  # the command has ended
            pass
    assert process.wait() == 0


def _animate(drawn: str, pauses: list[float]) -> str:
    """Return the drawing with an animation that shows each line after its pause."""
    moments, moment = [], 0.0
    for pause in pauses:
        moments.append(moment)
        moment += min(pause, LONGEST_PAUSE)
    drawn = drawn.replace("<style>", f"<style>{ANIMATION}", 1)
    return ELEMENT.sub(
        lambda found: (
            f'{found[1]} style="animation: appear 0.1s {moments[int(found[2])]:.1f}s both"'
        ),
        drawn,
    )


if __name__ == "__main__":
    main()
