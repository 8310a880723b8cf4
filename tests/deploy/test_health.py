"""The liveness probe and the drain program work with a fake server."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from http_server import http_server, send

from tandem.bls.admission import Admission, Reservation
from tandem.bls.errors import Overloaded
from tandem.bls.metrics import HEARTBEAT, OLDEST_DELIVERY

OTHER_ENTRY = '{model="other"}'
ANSWER = (200, json.dumps({"model_name": "bls", "text_output": "\n"}))


class Triton:
    """A fake server in a pod. Tests set its responses and metrics."""

    def __init__(self):
        self.answer = ANSWER
        self.hangs = False
        self.calls_a_scrape = 0
        self.calls = 3
        self.running = self.waiting = 0
        self.running_by_scrape = []
        self.empty = self.page_seconds = 0.0
        self.looked = {"bls": 0.0, "bls_stream": 0.0}  # seconds since the last check
        self.other_running = 0
        self.untaken = self.other_untaken = 0.0
        self.other_looked = 0.0

    @property
    def metrics(self):
        self.calls += self.calls_a_scrape
        time.sleep(self.page_seconds)
        if self.empty:
            return ""
        if self.running_by_scrape:
            self.running = self.running_by_scrape.pop(0)
        return "".join(
            f'{HEARTBEAT}{{model="{model}"}} {time.time() - ago}\n'
            for model, ago in self.looked.items()
        ) + (
            "# TYPE tandem_requests_running gauge\n"
            f"{HEARTBEAT}{OTHER_ENTRY} "
            f"{time.time() - self.other_looked}\n"
            f'tandem_requests_running{{model="bls_stream"}} {self.running}\n'
            f"tandem_requests_running{OTHER_ENTRY} {self.other_running}\n"
            f'tandem_requests_waiting{{model="bls_stream"}} {self.waiting}\n'
            f'{OLDEST_DELIVERY}{{model="bls_stream"}} {self.untaken}\n'
            f"{OLDEST_DELIVERY}{OTHER_ENTRY} {self.other_untaken}\n"
            f'nv_inference_request_success{{model="target",version="1"}} {self.calls}\n'
            'nv_inference_request_success{model="draft",version="1"} 1e6\n'
        )


@pytest.fixture
def triton():
    return Triton()


@contextmanager
def serving(triton, *, more_bytes=0):
    """Serve on a free port; yield the URL. more_bytes: bytes announced but not sent."""

    def answer(request):
        if request.command == "GET":
            send(request, 200, triton.metrics, more_bytes=more_bytes)
            return
        request.rfile.read(int(request.headers["Content-Length"]))
        if triton.hangs:
            is_over.wait()
        send(request, *triton.answer)

    is_over = threading.Event()
    with http_server(answer) as port:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            is_over.set()


@pytest.fixture
def ailment(program, triton):
    def ask(patience=60.0):
        with serving(triton) as url:
            return program("health").ailment(
                f"{url}/generate", f"{url}/metrics", "target", patience
            )

    return ask


def test_a_server_that_responds_is_healthy(ailment):
    assert ailment() is None


@pytest.mark.parametrize(
    ("answer", "ailment_begins"),
    [
        ((200, '{"error":"unexpected"}'), """no text in '{"error":"unexpected"}'"""),
        ((500, '{"error":"the target is lost"}'), "500: "),
    ],
)
def test_a_server_that_responds_with_an_error_is_unhealthy(ailment, triton, answer, ailment_begins):
    triton.answer = answer
    assert ailment().startswith(ailment_begins)


def test_a_full_queue_does_not_restart_the_server(ailment, triton):
    full = Admission(max_running=1, max_waiting=0, kv_blocks=8)
    full.arrive(1).enter([Reservation(1)])
    with pytest.raises(Overloaded) as rejected:
        full.arrive(1)
    triton.answer = (500, json.dumps({"error": f"in ensemble 'bls', {rejected.value.line}"}))
    assert ailment() is None


def test_a_slow_server_is_healthy_while_the_target_gets_calls(ailment, triton):
    triton.hangs, triton.calls_a_scrape = True, 40
    assert ailment(patience=0.1) is None
    triton.calls_a_scrape = 0
    assert ailment(patience=0.1).startswith(
        "no response in 0.1 s, and no call of 'target' in that time"
    )


def test_a_stopped_server_is_unhealthy(program):
    gone = "http://127.0.0.1:9"
    assert "refused" in program("health").ailment(gone, gone, "target", 1.0)


@pytest.fixture
def blindness(program, triton):
    def ask():
        with serving(triton) as url:
            return program("health").blindness(f"{url}/metrics")

    return ask


def test_a_server_is_unhealthy_if_any_watcher_stops_checking(blindness, triton, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    triton.looked = {"bls": 3.0, "bls_stream": 20.0}
    assert blindness() is None
    triton.other_looked = 90.0
    said = f"{OTHER_ENTRY[1:-1]} last checked its requests 90 s ago"
    assert blindness() == said
    triton.other_looked, triton.looked["bls_stream"] = 0.0, 90.0
    assert blindness() == 'model="bls_stream" last checked its requests 90 s ago'


def test_unreachable_metrics_do_not_make_a_server_unhealthy(program):
    assert program("health").blindness("http://127.0.0.1:9/metrics") is None


@pytest.mark.parametrize("loop", ["untaken", "other_untaken"])
def test_a_server_whose_streams_hang_is_unhealthy(program, triton, loop):
    silence = program("health").silence_of_streams
    with serving(triton) as url:
        setattr(triton, loop, 30.0)
        assert silence(f"{url}/metrics") is None
        setattr(triton, loop, 31.0)
        assert silence(f"{url}/metrics").endswith(" for 31 s")


def test_probes_ignore_proxy_settings(program, triton, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    triton.untaken = 31.0
    with serving(triton) as url:
        assert program("health").silence_of_streams(f"{url}/metrics")


def test_incomplete_metrics_are_ignored(program, triton):
    with serving(triton, more_bytes=1) as url:
        assert program("health").samples(f"{url}/metrics", HEARTBEAT) == []


@pytest.fixture
def drained(program, triton):
    """drained(limit) waits for the drain and returns the seconds that it took."""

    def wait(limit=300):
        health = program("health")
        health.POLL_SECONDS = 0.05
        if triton.page_seconds:
            health.READ_SECONDS = 0.05
        with serving(triton) as url:
            began = time.monotonic()
            health.wait_until_drained(f"{url}/metrics", notice=0, limit=limit)
            return time.monotonic() - began

    return wait


def test_a_drain_waits_for_running_and_waiting_requests(drained, triton):
    triton.running = triton.waiting = triton.other_running = 1
    threading.Timer(0.2, lambda: setattr(triton, "running", 0)).start()
    threading.Timer(0.3, lambda: setattr(triton, "waiting", 0)).start()
    threading.Timer(0.4, lambda: setattr(triton, "other_running", 0)).start()
    drained()
    assert triton.running == triton.waiting == triton.other_running == 0


@pytest.mark.parametrize("state", ["page_seconds", "empty", "running"])
def test_the_drain_ends_at_its_limit_if_metrics_are_unclear(drained, triton, state):
    setattr(triton, state, 0.5)
    assert 0.3 <= drained(limit=0.3) < 100


def test_the_drain_ends_only_after_repeated_readings_of_zero(drained, triton):
    triton.running_by_scrape = [1, 0, 1, 0, 0, 1]
    drained()
    assert triton.running_by_scrape == [1]


def test_a_stopped_server_counts_as_drained_after_the_notice_period(program):
    health = program("health")
    health.POLL_SECONDS = 0.05
    began = time.monotonic()
    health.wait_until_drained("http://127.0.0.1:9/metrics", notice=0.3, limit=300)
    assert 0.3 <= time.monotonic() - began < 100


@pytest.mark.parametrize(("error", "gone"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_a_leader_counts_as_gone_only_if_its_name_does_not_exist(program, monkeypatch, error, gone):
    def resolve(*_args, **_options):
        raise socket.gaierror(error, "")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert program("health").in_flight("http://leader:8002/metrics") == (0 if gone else None)
