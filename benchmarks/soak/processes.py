"""Reads a server's use of memory, threads, file descriptors and shared memory."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import prometheus_client.samples
from prometheus_client.parser import text_string_to_metric_families

from tandem.tools.triton.server import TritonServer
from tandem.tools.triton.supervisor import process_name

Number = TypeVar("Number", int, float)
MB = 2**20
BLOCK = 512
HEARTBEAT = "tandem_watcher_last_look_timestamp_seconds"
AT_REST = ("tandem_requests_running", "tandem_requests_waiting")


class Sample(NamedTuple):
    """The resources of a server at one moment.

    memory_mb, threads, descriptors: sums over the processes of each model, by model; "Triton" is
    the server itself. heartbeat: seconds since the last check of the watcher that is most overdue;
    None if unknown. lost: number of abandoned calls, by engine.
    """

    moment: float
    memory_mb: dict[str, float]
    threads: dict[str, int]
    descriptors: dict[str, int]
    shared_mb: float
    heartbeat: float | None
    lost: dict[str, int]


def sample(server: TritonServer) -> Sample:
    names = {pid: name for pid in server.processes if (name := process_name(pid))}
    metrics = read_metrics(server)
    beats = [one.value for one in metrics if one.name == HEARTBEAT]
    return Sample(
        moment=time.monotonic(),
        memory_mb=_sum_by_model(names, lambda pid: _status(pid, "RssAnon") / 1024),
        threads=_sum_by_model(names, lambda pid: _status(pid, "Threads")),
        descriptors=_sum_by_model(names, lambda pid: len(os.listdir(f"/proc/{pid}/fd"))),
        shared_mb=_shared_bytes(server.shm_prefix) / MB,
        heartbeat=time.time() - min(beats) if beats else None,
        lost=_count_lost_calls(metrics),
    )


def stub_pid(server: TritonServer, model: str) -> int:
    """Return the process id of a model's stub."""
    return next(pid for pid in server.processes if process_name(pid) == model)


def is_at_rest(server: TritonServer) -> bool:
    """Return whether no requests are running or waiting.

    Scrapes only once, because a request could start between two scrapes.
    """
    samples = read_metrics(server, AT_REST)
    return not any(one.value for one in samples if one.name in AT_REST)


def read_metrics(
    server: TritonServer, names: tuple[str, ...] = ("",)
) -> list[prometheus_client.samples.Sample]:
    """Return the samples of Triton's /metrics whose names start with one of these names.

    Parsing the whole page takes 20 ms.
    """
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        text = answer.read().decode()
    # With type lines, the parser would append "_total" to the names of Triton's counters.
    lines = (
        line for line in text.splitlines() if line.startswith(names) and not line.startswith("#")
    )
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [one for family in families for one in family.samples]


def _count_lost_calls(metrics: Iterable[prometheus_client.samples.Sample]) -> dict[str, int]:
    lost = Counter[str]()
    for one in metrics:
        if one.name == "tandem_abandoned_calls":
            lost[one.labels["engine"]] += int(one.value)
    return dict(lost)


def _sum_by_model(names: Mapping[int, str], count: Callable[[int], Number]) -> dict[str, Number]:
    """Sum a count over the processes of each model."""
    sums: dict[str, Number] = {}
    for pid, name in names.items():
        sums[name] = sums[name] + count(pid) if name in sums else count(pid)
    return sums


def _status(pid: int, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _shared_bytes(prefix: str) -> int:
    regions = list(Path("/dev/shm").glob(f"{prefix}*"))
    return sum(region.stat().st_blocks * BLOCK for region in regions)
