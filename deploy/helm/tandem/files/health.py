"""What Kubernetes asks a pod, and Docker a container: whether it still answers, or has finished.

    health.py alive --patience 25 [--entry bls] [--target target]
    health.py drained --notice 10 --limit 610 [--host LEADER]
    health.py answers --patience 25

They exit with 0 for yes. ``alive`` finds names of a profile's own also in the environment
(TANDEM_ENTRY, TANDEM_TARGET). ``drained`` waits for it. ``answers`` asks a gateway, ``drained``
also one with ``--metrics-port 8080``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request

OVERLOADED = "overloaded:"  # how the loop refuses a request when its queue is full
IN_FLIGHT = (
    "tandem_requests_running",
    "tandem_requests_waiting",
    "tandem_gateway_requests_running",
)
LAST_LOOK = "tandem_watcher_last_look_timestamp_seconds"  # of each model that has a watcher
SECONDS_WITHOUT_A_LOOK = 30.0  # it looks twice a second, a server that is short of time more rarely
UNTAKEN = "tandem_oldest_untaken_response_seconds"  # by Triton, of each loop; it takes milliseconds
SECONDS_UNTAKEN = 30.0
CALLS = "nv_inference_request_success"  # Triton's own; the loop makes some in every round
QUESTION = json.dumps({"text_input": ".", "max_tokens": 1}).encode()
GATEWAY_QUESTION = json.dumps({"prompt": ".", "max_tokens": 1}).encode()
TOO_MANY_REQUESTS = 429
POLL_SECONDS = 1.0
# Straight to the server: a container may name a proxy for all else in its environment.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def main() -> int:
    """Run one verb; return the exit status."""
    options = parser().parse_args()
    metrics = f"http://{options.host}:{options.metrics_port}/metrics"
    if options.verb == "drained":
        wait_until_drained(metrics, options.notice, options.limit)
        return 0
    if options.verb == "answers":
        completions = f"http://{options.host}:{options.gateway_port}/v1/completions"
        return told(silence(completions, options.patience))
    generate = f"http://{options.host}:{options.http_port}/v2/models/{options.entry}/generate"
    return told(
        ailment(generate, metrics, options.target, options.patience)
        or blindness(metrics)
        or silence_of_streams(metrics)
    )


def told(problem: str | None) -> int:
    """Say what is wrong; return the exit status."""
    if problem:
        sys.stderr.write(f"{problem}\n")  # kubelet shows it in the pod's events
    return int(problem is not None)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--http-port", type=int, default=8000)
    options.add_argument("--metrics-port", type=int, default=8002)
    options.add_argument("--gateway-port", type=int, default=8080)
    verbs = options.add_subparsers(dest="verb", required=True)
    alive = verbs.add_parser("alive")
    alive.add_argument("--entry", default=os.environ.get("TANDEM_ENTRY", "bls"))
    alive.add_argument("--target", default=os.environ.get("TANDEM_TARGET", "target"))
    alive.add_argument("--patience", type=float, required=True)
    answers = verbs.add_parser("answers")
    answers.add_argument("--patience", type=float, required=True)
    drained = verbs.add_parser("drained")
    drained.add_argument("--notice", type=float, required=True)
    drained.add_argument("--limit", type=float, required=True)
    return options


def ailment(generate: str, metrics: str, target: str, patience: float) -> str | None:
    """Ask for one token; return what is wrong, or None.

    Triton's health page stays green over model processes that died: only an answer proves that
    they live. A full server may have no answer in time, and must not be restarted for that: there,
    a loop that goes on calling the target is the proof.
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
        return f"no answer in {patience:g} s, and no call of '{target}' meanwhile ({error})"
    return None if "text_output" in said else f"no text in {said!r}"


def silence(completions: str, patience: float) -> str | None:
    """Ask a gateway for one token; return why there was none, or None.

    It is there to answer, if only that its servers are overloaded. The key that it asks for is in
    its own environment.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("TANDEM_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    question = urllib.request.Request(completions, GATEWAY_QUESTION, headers)
    try:
        with OPEN(question, timeout=patience) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        if error.code == TOO_MANY_REQUESTS:
            return None
        return f"{error.code}: {error.read().decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer in {patience:g} s ({error})"
    return None


def blindness(metrics: str) -> str | None:
    """Return which model's watcher has stopped, or None.

    Without it requests are answered still, but nobody is cancelled and no time-out ends a call.
    """
    now = time.time()
    for labels, seen in samples(metrics, LAST_LOOK):
        if now - seen > SECONDS_WITHOUT_A_LOOK:
            return f"nobody has looked after the requests of {labels} for {now - seen:.0f} s"
    return None


def silence_of_streams(metrics: str) -> str | None:
    """Return which loop's responses Triton does not take any more, or None.

    The one thread that serves all gRPC streams waits for ever then; all else goes on.
    """
    for labels, seconds in samples(metrics, UNTAKEN):
        if seconds > SECONDS_UNTAKEN:
            return f"a response of {labels} was not taken for {seconds:.0f} s: gRPC streams hang"
    return None


def wait_until_drained(metrics: str, notice: float, limit: float) -> None:
    """Return when nothing is in flight, or the limit (seconds) has passed.

    notice: seconds that balancers take to learn that this pod is to end; until then new requests
    arrive. A server that does not answer has nothing in flight that could be saved.
    """
    end = time.monotonic() + limit
    time.sleep(notice)
    while sum(total(metrics, name) for name in IN_FLIGHT) > 0 and time.monotonic() < end:
        time.sleep(POLL_SECONDS)


def total(metrics: str, name: str, **labels: str) -> float:
    """Return a metric's sum over all samples with these labels; 0 where there is none."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    found = samples(metrics, name)
    return sum(value for given, value in found if all(pair in given for pair in wanted))


def samples(metrics: str, name: str) -> list[tuple[str, float]]:
    """Return a metric's labels and values; none where nobody answers."""
    text = ""
    unread = contextlib.suppress(OSError, http.client.HTTPException)
    with unread, OPEN(metrics, timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]


if __name__ == "__main__":
    sys.exit(main())
