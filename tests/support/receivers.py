"""A receiver of a sequence, and an error that code may not expect."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.bls.request import Request


class Receiver:
    """Record the chunks, the tokens and the end of a sequence.

    done: set when the last chunk arrives. end: set when the sequence ends.
    """

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.tokens: list[int] = []
        self.ends: list[Exception | None] = []
        self.done, self.end = threading.Event(), threading.Event()

    def reserve(self, num_output_tokens: int) -> bool:
        return num_output_tokens >= 0  # blocks are always free

    def deliver(self, chunk: Any) -> None:
        self.chunks.append(chunk)
        self.tokens += chunk.tokens.tolist()
        if chunk.finish_reason is not None:
            self.done.set()

    def on_end(self, error: Exception | None) -> None:
        self.ends.append(error)
        self.end.set()

    @property
    def error(self) -> Exception | None:
        """Return the error of the sequence, which ends once."""
        [error] = self.ends
        return error


class Panic(BaseException):
    """An error that isn't an Exception, like a panic in a Rust library."""


class Runs:
    """A loop that runs a function of its ports. failures: of abandoned draft calls."""

    request = Request(prompt_ids=np.array([1, 2, 3], np.int32), max_tokens=8)

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.run = function
        self.failures: list[Exception] = []
        self.draft_failed = self.failures.append
