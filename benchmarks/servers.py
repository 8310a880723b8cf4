"""Starts servers to measure, and sends them requests through OpenAI's API."""

from __future__ import annotations

import http.client
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import EntrySection, Profile
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

ENTRY = "loop"  # name of the stream entry
STARTUP_SECONDS = 300


class TimedAnswer(NamedTuple):
    """An answer, its number of tokens and the milliseconds until its first text."""

    text: str
    tokens: int
    first_ms: float


class MeasuredTurn(NamedTuple):
    """The answers of requests that ran at once, and the seconds that they took."""

    seconds: float
    answers: list[TimedAnswer]


class RunningServer(NamedTuple):
    """A server of OpenAI's API. ready: seconds that its start took."""

    process: int
    port: int
    ready: float


@contextmanager
def serving_loop(
    profile: Profile,
    change: Callable[[Path], None] = lambda _: None,
    threads: int | None = None,
) -> Iterator[TritonServer]:
    """Serve a stream entry.

    change: edits the rendered repository. threads: Triton's threads per model (None: as many as
    needed).
    """
    entries = (EntrySection(name=ENTRY, kind="stream"),)
    planned = deployment.check(profile.model_copy(update={"entries": entries}))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        change(models)
        with TritonServer(models, thread_pool_size=threads or planned.thread_pool_size) as server:
            yield server


@contextmanager
def started(
    command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """Start a server of OpenAI's API, and end it at the end of the context."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, env=environment
        ) as process,
    ):
        try:
            while not _answers(port):
                if process.poll() is not None or time.perf_counter() - began > STARTUP_SECONDS:
                    process.kill()
                    said.seek(0)
                    raise SystemExit(said.read().decode()[-2000:])
                time.sleep(0.05)
            yield RunningServer(process.pid, port, time.perf_counter() - began)
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


def ask_at_once(port: int, path: str, bodies: Sequence[Mapping[str, Any]]) -> MeasuredTurn:
    """Send streaming requests for chats or completions at once, and wait for all answers."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        began = time.perf_counter()
        answers = list(pool.map(partial(_ask, port, path), bodies))
        return MeasuredTurn(time.perf_counter() - began, answers)


def _ask(port: int, path: str, body: Mapping[str, Any]) -> TimedAnswer:
    began, first, text, tokens = time.perf_counter(), 0.0, "", 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STARTUP_SECONDS)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json"}
    connection.request("POST", path, json.dumps({**body, **streamed}), headers)
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise SystemExit(f"{port} answered {response.status}: {response.read().decode()[:500]}")
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            if more := choice.get("text") or choice.get("delta", {}).get("content"):
                first = first or time.perf_counter()
                text += more
    connection.close()
    return TimedAnswer(text, tokens, (first - began) * 1e3)
