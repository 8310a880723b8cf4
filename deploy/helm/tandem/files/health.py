"""Probe the liveness of a Triton server, or drain it, for Kubernetes and Docker.

    health.py alive --patience 25 [--entry bls] [--target target]
    health.py drained --notice 10 --limit 610 [--host LEADER]

``alive`` exits with 0 if the server is alive. The environment variables TANDEM_ENTRY and
TANDEM_TARGET are the defaults of its options. ``drained`` returns when no requests are in flight.
With ``--metrics-port 8080`` it drains a gateway.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request

OVERLOADED = "overloaded:"  # start of the loop's error if its queue is full
IN_FLIGHT = (
    "tandem_requests_running",
    "tandem_requests_waiting",
    "tandem_gateway_requests_running",
)
LAST_LOOK = "tandem_watcher_last_look_timestamp_seconds"  # one per model with a watcher
SECONDS_WITHOUT_A_LOOK = 30.0  # a watcher checks twice per second, less often on a busy server
UNTAKEN = "tandem_oldest_untaken_response_seconds"  # one per loop; usually milliseconds
SECONDS_UNTAKEN = 30.0
CALLS = "nv_inference_request_success"  # Triton's metric; every round of the loop increases it
QUESTION = json.dumps({"text_input": ".", "max_tokens": 1}).encode()
READ_SECONDS = 5.0  # timeout for reading the metrics
POLL_SECONDS = 1.0
# Connect directly, because a container's environment may set a proxy.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def main() -> int:
    options = parser().parse_args()
    metrics = f"http://{options.host}:{options.metrics_port}/metrics"
    if options.verb == "drained":
        wait_until_drained(metrics, options.notice, options.limit)
        return 0
    generate = f"http://{options.host}:{options.http_port}/v2/models/{options.entry}/generate"
    problem = (
        ailment(generate, metrics, options.target, options.patience)
        or blindness(metrics)
        or silence_of_streams(metrics)
    )
    if problem:
        sys.stderr.write(f"{problem}\n")  # kubelet shows it in the pod's events
    return int(problem is not None)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--http-port", type=int, default=8000)
    options.add_argument("--metrics-port", type=int, default=8002)
    verbs = options.add_subparsers(dest="verb", required=True)
    alive = verbs.add_parser("alive")
    alive.add_argument("--entry", default=os.environ.get("TANDEM_ENTRY", "bls"))
    alive.add_argument("--target", default=os.environ.get("TANDEM_TARGET", "target"))
    alive.add_argument("--patience", type=float, required=True)
    drained = verbs.add_parser("drained")
    drained.add_argument("--notice", type=float, required=True)
    drained.add_argument("--limit", type=float, required=True)
    return options


def ailment(generate: str, metrics: str, target: str, patience: float) -> str | None:
    """Request one token; return the problem, or None if the server is alive.

    Triton's health endpoint still reports success after model processes have died, so only an
    answer shows that they are alive. A server under full load may not answer in time, but must not
    be restarted. Such a server is alive if the loop keeps calling the target.
    """
    calls = total(metrics, CALLS, model=target)
    try:
        with OPEN(generate, QUESTION, timeout=patience) as answer:
            said = answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        return None if OVERLOADED in said else f"{error.code}: {said}"
    except (OSError, http.client.HTTPException) as error:
        if total(metrics, CALLS, model=target) > calls:
            return None
        return f"no response in {patience:g} s, and no call of '{target}' in that time ({error})"
    return None if "text_output" in said else f"no text in {said!r}"


def blindness(metrics: str) -> str | None:
    """Return a problem if a model's watcher has stopped, or None.

    Without a watcher, requests are still answered, but cancellations and timeouts don't work.
    """
    now = time.time()
    for labels, seen in samples(metrics, LAST_LOOK):
        if now - seen > SECONDS_WITHOUT_A_LOOK:
            return f"{labels} last checked its requests {now - seen:.0f} s ago"
    return None


def silence_of_streams(metrics: str) -> str | None:
    """Return a problem if Triton has stopped accepting a loop's responses, or None.

    In that case the single thread that serves all gRPC streams hangs. Everything else keeps
    working.
    """
    for labels, seconds in samples(metrics, UNTAKEN):
        if seconds > SECONDS_UNTAKEN:
            return f"gRPC streams hang: no response of {labels} taken for {seconds:.0f} s"
    return None


def wait_until_drained(metrics: str, notice: float, limit: float) -> None:
    """Wait until no requests are in flight, in two consecutive readings of the metrics.

    notice: seconds until load balancers have noticed that this pod is ending; until then, new
    requests arrive. limit: maximum seconds to wait. Failed readings are ignored, because a busy
    server may be slow to return its metrics.
    """
    end = time.monotonic() + limit
    time.sleep(notice)
    idle_readings = 0
    while time.monotonic() < end:
        idle_readings = idle_readings + 1 if in_flight(metrics) == 0 else 0
        if idle_readings == 2:
            return
        time.sleep(POLL_SECONDS)


def in_flight(metrics: str) -> float | None:
    """Return the number of requests in flight; 0 if the server is gone, None if unknown."""
    try:
        page = read(metrics)
    except urllib.error.URLError as error:
        return 0 if is_gone(error.reason) else None
    except (OSError, http.client.HTTPException):
        return None
    return sum(value for name in IN_FLIGHT for _, value in find(page, name)) if page else None


def is_gone(reason: object) -> bool:
    """Return whether an error shows that the server or the name of its pod no longer exists."""
    nameless = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    return nameless or isinstance(reason, ConnectionRefusedError)


def total(metrics: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels; 0 without samples."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    found = samples(metrics, name)
    return sum(value for given, value in found if all(pair in given for pair in wanted))


def samples(metrics: str, name: str) -> list[tuple[str, float]]:
    """Return a metric's labels and values; an empty list if the metrics can't be read."""
    try:
        return find(read(metrics), name)
    except (OSError, http.client.HTTPException):
        return []


def find(page: str, name: str) -> list[tuple[str, float]]:
    """Return the labels and values of a metric in the text of a metrics page."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", page, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]


def read(metrics: str) -> str:
    """Return the text of a metrics page; raise OSError or HTTPException if it can't be read."""
    with OPEN(metrics, timeout=READ_SECONDS) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main())
