"""Runs many concurrent clients, and collects their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from entries import Answer, joined, said, streaming
from live_triton import eventually
from tritonclient.utils import InferenceServerException


def ask(
    server: Any, prompt: str, *, on_chunk: Callable[[], None] = lambda: None, **values: Any
) -> Answer:
    """Send a prompt and collect the answer, which continues after an end of sequence.

    timeout (in values): Triton's timeout of the request, in microseconds.
    """
    chunks, error = [], ""
    try:
        with streaming(server, prompt, **{"max_tokens": 24, "end_id": -1} | values) as arriving:
            for chunk in arriving:
                chunks.append(chunk)
                on_chunk()
    except InferenceServerException as failure:
        error = failure.message()
    return joined(chunks, error)


class Crowd(AbstractContextManager["Crowd"]):
    """Concurrent clients, one thread each."""

    def __init__(self, server: Any, size: int) -> None:
        self._server = server
        self._threads = ThreadPoolExecutor(size)
        self._chunks: list[int] = []

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def ask(self, prompts: Iterable[str], **values: Any) -> list[Future[Answer]]:
        """Send all prompts concurrently."""
        return [self._ask(prompt, values) for prompt in prompts]

    def run(self, what: Callable[..., Any], *values: Any) -> Future[Any]:
        """Run another function on a client's thread."""
        return self._threads.submit(what, *values)

    def wait_until_all_talk(self) -> None:
        """Wait until every client has received at least three chunks."""
        assert eventually(lambda: min(self._chunks) >= 3)

    def _ask(self, prompt: str, values: dict[str, Any]) -> Future[Answer]:
        number = len(self._chunks)
        self._chunks.append(0)

        def count() -> None:
            self._chunks[number] += 1

        return self._threads.submit(ask, self._server, prompt, on_chunk=count, **values)


def answers_of(futures: Iterable[Future[Answer]]) -> list[Answer]:
    """Wait for all clients and return their results."""
    return [future.result(timeout=120) for future in futures]


def controls(server: Any, prompts: Iterable[str], **values: Any) -> list[tuple]:
    """Return the baseline's ids, text and finish reason for each prompt."""
    with Crowd(server, 8) as crowd:
        answers = answers_of(crowd.ask(prompts, **{"drafter": "none"} | values))
    assert not [answer.error for answer in answers if answer.error]
    return said(answers)


def wrong(answers: Iterable[Answer], expected: Iterable[tuple]) -> list[str]:
    """Return one line per client with a wrong result."""
    return [
        answer.error or f"{answer.said} is not {right}"
        for answer, right in zip(answers, expected, strict=True)
        if answer.error or answer.said != right
    ]


def prompts_of(count: int) -> list[str]:
    """Return prompts that have little in common."""
    return [f"{i * 37 % 101} def f{i}(x):\n    return {i * 7}" for i in range(count)]
