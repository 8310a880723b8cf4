"""Commands that stop reading an answer early also stop the request."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from live_triton import eventually
from triton_service import MANY, response
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem.contract import entry
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.variant import BASELINE, Scenario
from tandem.tools.client import client
from tandem.tools.client.client import Client

INPUTS = {entry.TEXT_INPUT: "x", entry.MAX_TOKENS: 4}
SECONDS = 20
SERVES = "service"  # name of the fake server's threads


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A fake Triton that sends responses until it receives a `stop`."""

    def __init__(self, *, answers=True, is_long=True, heeds=True, pauses=True):
        self._answers, self._is_long = answers, is_long
        self._heeds, self._pauses = heeds, pauses
        self.requests, self.stops = [], []
        self.all_came = threading.Event()  # set after all responses were sent
        self.ended = threading.Event()

    def ModelStreamInfer(self, requests, context):  # noqa: N802
        context.add_callback(self.ended.set)
        self.requests.append(next(requests))
        if not self._answers:
            self.ended.wait(2 * SECONDS)
        yield chunk()
        if not self._is_long:
            yield chunk(is_last=True)
        if not self._pauses:
            yield from itertools.repeat(chunk())
        for stop in requests:
            self.stops.append(stop)
            yield from itertools.repeat(chunk(), MANY)  # responses that were already under way
            if self._heeds:
                self.all_came.set()  # not reached if the client cancels first
                yield service_pb2.ModelStreamInferResponse(error_message="cancelled")


def chunk(*, is_last=False):
    one = response({entry.TEXT_OUTPUT: b"a", entry.OUTPUT_IDS: [[[7]]]})
    one.infer_response.parameters["triton_final_response"].bool_param = is_last
    return one


@contextmanager
def serving(service):
    """Yield the URL of a fake server."""
    server = grpc.server(ThreadPoolExecutor(thread_name_prefix=SERVES))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def asking(service):
    """Yield the chunks of an answer from a fake server."""
    with serving(service) as url:
        with Client(url) as asks:
            yield asks.stream("bls_stream", INPUTS)
        assert service.ended.wait(SECONDS)


def threads_of_clients():
    return {t for t in threading.enumerate() if not t.name.startswith(SERVES)}


def leave(service):
    with asking(service) as chunks:
        next(chunks)
        chunks.close()


def test_leaving_an_answer_sends_a_stop_and_waits_for_the_end():
    """A cancelled stream can hang Triton's only thread for streams."""
    service = Service()
    leave(service)
    (request,), (stop,) = service.requests, service.stops
    assert service.all_came.is_set()
    assert request.id
    assert (stop.id, stop.model_name) == (request.id, request.model_name)
    (given,) = stop.inputs
    assert given.name == entry.STOP
    assert stop.raw_input_contents == [b"\1"]
    # The client would mistake a separate final response for the end of the request.
    assert not stop.parameters["triton_enable_empty_final_response"].bool_param


@pytest.mark.parametrize("pauses", [True, False])
def test_waiting_for_a_server_that_ignores_stop_requests_is_limited(monkeypatch, pauses):
    monkeypatch.setattr(client, "SECONDS_TO_END", 0.3)
    service = Service(heeds=False, pauses=pauses)
    with asking(service) as chunks:
        next(chunks)
        chunks.close()
        assert service.ended.wait(SECONDS)


@pytest.mark.parametrize("is_long", [True, False])
def test_a_finished_or_stopped_answer_leaves_no_thread(is_long):
    """tritonclient keeps one thread per cancelled stream, and a benchmark has thousands."""
    before = threads_of_clients()
    with asking(Service(is_long=is_long)) as chunks:
        next(chunks)
        assert threads_of_clients() - before  # threads of earlier tests may end meanwhile
        chunks.close() if is_long else list(chunks)
    assert eventually(lambda: threads_of_clients() <= before)


def test_no_stop_is_sent_after_a_complete_answer():
    service = Service(is_long=False)
    with asking(service) as chunks:
        assert len(list(chunks)) == 2
    assert service.stops == []


def test_a_benchmark_can_be_interrupted_while_the_server_does_not_respond():
    """If it waited for the answers, only SIGKILL would end it."""
    service = Service(answers=False)
    plan = LoadPlan([Scenario("code", [INPUTS])], [BASELINE], [2], 4, 1, 0, {})
    with ThreadPoolExecutor() as threads, serving(service) as url:
        generator = LoadGenerator(url, "bls_stream", plan)
        threads.submit(generator.measurements)
        assert eventually(lambda: service.requests)
        threads.submit(generator.__exit__).result(SECONDS)
