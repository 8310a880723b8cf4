"""A good client in a process of its own: it streams all the time and says how it fared.

`python bystander.py URL` asks the server at that gRPC address for the same few answers again and
again until its standard input ends; then it prints one JSON object (see `Fare`). It has a process
of its own so that nothing that a test does meanwhile looks like a pause of the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tandem.contract import entry as tensors
from tandem.tools.client.client import Client
from tandem.tools.errors import TandemError

PROMPTS = [f"def careful_{n}(reader):\n" for n in range(4)]
TOKENS = 160
NOTED_SECONDS = 0.2  # shorter pauses are not worth a line


@dataclass
class Fare:
    """What a good client saw. Pauses are (begin, end) on the machine's monotonic clock.

    A pause is what lies between two chunks, or between asking and the first one.
    """

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)

    def heard(self, before: float, now: float) -> None:
        """Note that nothing came between two moments."""
        self.longest = max(self.longest, now - before)
        if now - before >= NOTED_SECONDS:
            self.pauses.append((before, now))

    def unexcused(self, seconds: float, twin: Fare) -> list[float]:
        """Pauses longer than these seconds and what the machine took from a twin meanwhile."""
        return [
            round(end - begin, 2)
            for begin, end in self.pauses
            if end - begin > seconds + twin.paused(begin, end)
        ]

    def paused(self, begin: float, end: float) -> float:
        """How long its longest pause in that time was."""
        return max((b - a for a, b in self.pauses if a < end and b > begin), default=0.0)

    def paused_in_all(self, begin: float, end: float) -> float:
        """How long its pauses in that time were together."""
        return sum(max(min(b, end) - max(a, begin), 0.0) for a, b in self.pauses)


class Bystander:
    """The process, and what it printed in the end."""

    def __init__(self, url: str) -> None:
        root = Path(__file__).resolve().parents[2]
        self.fare = Fare()
        self._process = subprocess.Popen(
            [sys.executable, __file__, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        )
        self._process.stdout.readline()  # it has its first answer

    def stop(self) -> None:
        """End it and hear what it saw."""
        printed, _ = self._process.communicate(timeout=60)
        seen = json.loads(printed)
        self.fare = Fare(**{**seen, "pauses": [tuple(pause) for pause in seen["pauses"]]})


@contextmanager
def standing_by(url: str):
    """A good client at work; how it fared is known afterwards."""
    bystander = Bystander(url)
    try:
        yield bystander
    finally:
        bystander.stop()


def watch(client: Client, fare: Fare, over: threading.Event) -> None:
    """Stream until it is over."""
    expected = [answer(client, "ensemble", prompt, Fare()) for prompt in PROMPTS]
    print("ready", flush=True)
    while not over.is_set():
        prompt = PROMPTS[fare.answers % len(PROMPTS)]
        try:
            text = answer(client, "bls_stream", prompt, fare)
        except TandemError as error:
            text = str(error)
        if text != expected[fare.answers % len(PROMPTS)]:
            fare.wrong.append(text)
        fare.answers += 1


def answer(client: Client, model: str, prompt: str, fare: Fare) -> str:
    """The text of one answer; its pauses are noted."""
    text, before = "", time.monotonic()
    asked = {
        tensors.TEXT_INPUT: prompt,
        tensors.MAX_TOKENS: TOKENS,
        tensors.END_ID: -1,
        tensors.STREAM: model == "bls_stream",
    }
    for chunk in client.stream(model, asked):
        now = time.monotonic()
        fare.heard(before, now)
        text, before = text + chunk.text, now
    return text


def main() -> None:
    """Stream until standard input ends."""
    over, fare = threading.Event(), Fare()
    with Client(sys.argv[1]) as client:
        watching = threading.Thread(target=watch, args=(client, fare, over))
        watching.start()
        sys.stdin.read()
        over.set()
        watching.join()
    print(json.dumps(asdict(fare)))


if __name__ == "__main__":
    main()
