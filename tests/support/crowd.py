"""Runs many concurrent clients, and collects their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import entries
from live_triton import eventually
from tritonclient.utils import InferenceServerException

from tandem.contract import entry as tensors

TOTALS = (tensors.NUM_ROUNDS, tensors.TOTAL_DRAFT_TOKENS, tensors.TOTAL_ACCEPTED_DRAFT_TOKENS)


class Received(NamedTuple):
    """The result of one client: an answer or an error line."""

    ids: tuple[int, ...]
    text: str
    rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    error: str = ""

    @property
    def said(self) -> tuple[tuple[int, ...], str]:
        """The token ids and the text."""
        return self.ids, self.text


def ask(
    server: Any,
    prompt: str,
    *,
    model: str = "bls_stream",
    timeout: int | None = None,
    on_chunk: Callable[[], None] = lambda: None,
    **values: Any,
) -> Received:
    """Send a prompt and collect the answer, which continues after an end of sequence.

    timeout: Triton's timeout of the request, in microseconds.
    """
    values = {"max_tokens": 24, "end_id": -1} | values
    ids, text, totals = [], "", (0, 0, 0)
    try:
        with entries.streaming(server, prompt, model=model, timeout=timeout, **values) as chunks:
            for chunk in chunks:
                ids += chunk.ids
                text += chunk.text
                totals = tuple(int(chunk.number(name)) for name in TOTALS)
                on_chunk()
    except InferenceServerException as error:
        return Received(tuple(ids), text, *totals, error=error.message())
    return Received(tuple(ids), text, *totals)


class Crowd(AbstractContextManager["Crowd"]):
    """Concurrent clients, one thread each."""

    def __init__(self, server: Any, size: int) -> None:
        self._server = server
        self._threads = ThreadPoolExecutor(size)
        self._chunks: list[int] = []

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def ask(self, prompts: Iterable[str], **values: Any) -> list[Future[Received]]:
        """Send all prompts concurrently."""
        return [self._ask(prompt, values) for prompt in prompts]

    def run(self, what: Callable[..., Any], *values: Any) -> Future[Any]:
        """Run another function on a client's thread."""
        return self._threads.submit(what, *values)

    def wait_until_all_talk(self) -> None:
        """Wait until every client has received at least three chunks."""
        assert eventually(lambda: min(self._chunks) >= 3)

    def _ask(self, prompt: str, values: dict[str, Any]) -> Future[Received]:
        number = len(self._chunks)
        self._chunks.append(0)

        def count() -> None:
            self._chunks[number] += 1

        return self._threads.submit(ask, self._server, prompt, on_chunk=count, **values)


def answers_of(futures: Iterable[Future[Received]]) -> list[Received]:
    """Wait for all clients and return their results."""
    return [future.result(timeout=120) for future in futures]


def controls(server: Any, prompts: Iterable[str], **values: Any) -> list[tuple[Any, str]]:
    """Return the ids and text of the baseline's answer to each prompt."""
    with Crowd(server, 8) as crowd:
        answers = answers_of(crowd.ask(prompts, **{"drafter": "none"} | values))
    assert not [answer.error for answer in answers if answer.error]
    return [answer.said for answer in answers]


def wrong(answers: Iterable[Received], expected: Iterable[tuple[Any, str]]) -> list[str]:
    """Return one line per client with a wrong result."""
    return [
        answer.error or f"{answer.said} is not {said}"
        for answer, said in zip(answers, expected, strict=True)
        if answer.error or answer.said != said
    ]


def prompts_of(count: int) -> list[str]:
    """Return prompts that have little in common."""
    return [f"{i * 37 % 101} def f{i}(x):\n    return {i * 7}" for i in range(count)]
