"""Triton's answers and error codes over a real connection, from a server of a test's own."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import get_args

import anyio
import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem.bls.effects import FinishReason
from tandem.contract import entry
from tandem.contract.errors import coded
from tandem.contract.forwarding import is_forwarded
from tandem.gateway import infer_stream
from tandem.gateway import triton as gateway_triton
from tandem.gateway.errors import ApiError
from tandem.gateway.triton import FINISH_REASONS, Triton

pytestmark = pytest.mark.anyio
LOOP = {
    "preprocessing_model": "preprocessing",
    "postprocessing_model": "postprocessing",
    "target": '{"model": "target", "vocab_size": 3072, "max_seq_len": 1024, "max_draft_len": 16}',
    "drafters": '["none"]',
}
CONFIGS = {
    "bls_stream": LOOP,
    "bls": {"stream_model": "bls_stream"},
    "ensemble": {"stream_model": "bls_stream", "drafter": "none"},
    "preprocessing": {"add_special_tokens": "false"},
    "postprocessing": {"skip_special_tokens": "false"},
    "target": {"vocab_size": "3072"},
}
INPUTS = {entry.INPUT_IDS: [1, 2, 3], entry.MAX_TOKENS: 4, entry.STREAM: True}


@pytest.fixture(scope="module", autouse=True)
async def event_loop_of_all(anyio_backend):
    """One loop: grpc.aio has one queue for them all.

    What a test leaves in it would reach the next test's loop, and fail there, as its own is closed.
    """
    yield  # noqa: PT022  the loop is there as long as this is


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """What the gateway asks of Triton."""

    def __init__(self):
        self.code = None  # of a call that fails
        self.refusal = None  # of a stream that goes on
        self.line = "why\nit failed"
        self.ready = True
        self.more = {}
        self.configs = CONFIGS
        self.asked = 0  # what is served
        self.streams = True  # whether they are answered
        self.requests = []
        self.metadata = {}
        self.stops = []  # ids
        self.answers = self.heeds = True  # requests with something, and stops
        self.asked_for_text = asyncio.Event()
        self.ended = asyncio.Event()  # a stream that was left
        self.cancelled = False

    async def RepositoryIndex(self, request, context):  # noqa: N802
        self.asked += 1
        names = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(models=[names(name=n) for n in self.configs])

    async def ModelConfig(self, request, context):  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        for name, value in self.configs[request.name].items():
            answer.config.parameters[name].string_value = value
        return answer

    async def ModelStreamInfer(self, requests, context):  # noqa: N802
        self.metadata = dict(context.invocation_metadata())
        async for request in requests:
            if any(given.name == entry.STOP for given in request.inputs):
                if not self.streams:
                    await asyncio.sleep(60)
                if not self.ready:
                    yield service_pb2.ModelStreamInferResponse(error_message="it is unknown")
                continue
            self.requests.append(request)
            yield response({entry.TEXT_OUTPUT: b"a", entry.OUTPUT_IDS: [[[7, 8]]], **self.more})
            if self.refusal is not None:
                yield service_pb2.ModelStreamInferResponse(error_message=self.refusal)
                return
            if self.code is not None:
                await context.abort(self.code, self.line)
            last = {entry.FINISH_REASON: b"length", entry.SPEC_DECODE_STATISTICS: b'{"x": 1}'}
            yield response({entry.TEXT_OUTPUT: b"b", entry.OUTPUT_IDS: [[[9]]], **last})

    async def wait(self, requests, context):
        """A long answer, that ends where it is asked to."""
        context.add_done_callback(lambda _: self.ended.set())
        self.requests.append(await anext(requests))
        self.asked_for_text.set()
        if self.answers:
            yield response({entry.TEXT_OUTPUT: b"a", entry.OUTPUT_IDS: [[[7]]]})
        async for stop in requests:
            yield response({entry.TEXT_OUTPUT: b"b", entry.OUTPUT_IDS: [[[8]]]})
            self.stops.append(stop)
            if self.heeds:
                yield service_pb2.ModelStreamInferResponse(error_message="cancelled")
        if not (self.heeds and self.stops):  # only a cancellation ends it now
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled = True
                raise


def response(outputs):
    """A chunk; what the outputs do not name is 1."""
    answer = service_pb2.ModelStreamInferResponse()
    length = np.array([[np.size(outputs[entry.OUTPUT_IDS])]], np.int32)
    totals = (entry.NUM_ROUNDS, entry.TOTAL_DRAFT_TOKENS, entry.TOTAL_ACCEPTED_DRAFT_TOKENS)
    outputs = {entry.SEQUENCE_LENGTH: length, **{name: [[1]] for name in totals}, **outputs}
    for name, value in outputs.items():
        output = answer.infer_response.outputs.add(name=name)
        if isinstance(value, bytes):
            output.datatype, raw = "BYTES", len(value).to_bytes(4, "little") + value
            output.shape.append(1)
        else:
            array = np.array(value, np.int32)
            output.datatype, raw = "INT32", array.tobytes()
            output.shape.extend(array.shape)
        answer.infer_response.raw_output_contents.append(raw)
    return answer


async def started(service, port=0):
    """A server, and the port that it listens on."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


@asynccontextmanager
async def connected(service):
    server, port = await started(service)
    triton = Triton(f"127.0.0.1:{port}")
    try:
        yield triton
    finally:
        await triton.close()
        await server.stop(0)


async def test_models_are_read_from_configurations():
    async with connected(Service()) as triton:
        models = await triton.models()
        assert [(m.name, m.stream_model, m.drafter) for m in models.models] == [
            ("bls_stream", "bls_stream", None),
            ("bls", "bls_stream", None),
            ("ensemble", "bls_stream", "none"),
        ]
        assert models.room == 1008
        assert not models.add_special_tokens
        assert not models.skip_special_tokens
        assert await triton.ready()


async def test_many_who_come_at_once_ask_for_the_models_once():
    service = Service()
    async with connected(service) as triton:
        first = asyncio.create_task(triton.models())
        others = [asyncio.create_task(triton.models()) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()  # whoever leaves takes nobody along
        assert len({id(models) for models in await asyncio.gather(*others)}) == 1
    assert service.asked == 1


async def test_many_who_come_at_once_hear_of_the_same_failure_and_ask_again():
    service = Service()
    service.configs = {"target": {}}
    async with connected(service) as triton:
        told = await asyncio.gather(*(triton.models() for _ in range(20)), return_exceptions=True)
        assert {error.status for error in told} == {503}
        assert service.asked == 1
        service.configs = CONFIGS
        assert (await triton.models()).room == 1008


async def test_a_failure_of_any_kind_is_not_kept(monkeypatch):
    service = Service()
    async with connected(service) as triton:
        with monkeypatch.context() as broken:
            broken.setattr("tandem.gateway.triton.served_models", [].index)
            with pytest.raises(ValueError, match="is not in list"):
                await triton.models()
        assert (await triton.models()).room == 1008


async def test_chunks_are_read():
    service = Service()
    async with connected(service) as triton:
        first, last = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    assert first == ("a", [7, 8], 1, 1, 1, None, None, {})
    assert last == ("b", [9], 1, 1, 1, "length", {"x": 1}, {})
    (request,) = service.requests
    assert {i.name: list(i.shape) for i in request.inputs} == {
        "input_ids": [1, 3],
        "max_tokens": [1, 1],
        "stream": [1, 1],
    }
    assert [output.name for output in request.outputs] == list(entry.ANSWER_OUTPUTS)
    assert is_forwarded(request.id)
    assert "triton_grpc_error" not in service.metadata  # Triton 2.51 crashes of it


async def failure(service):
    """What a client is told of the service's error."""
    async with connected(service) as triton:
        await triton.models()
        with pytest.raises(ApiError) as failed:
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    return failed.value.status, failed.value.code, failed.value.message


async def test_further_outputs_are_read_where_they_are_asked_for():
    service = Service()
    service.more = {entry.OUTPUT_ROUNDS: [[[3, 4]]]}
    async with connected(service) as triton:
        chunks = triton.generate("bls_stream", INPUTS, [entry.OUTPUT_ROUNDS])
        assert (await anext(chunks)).extras == {entry.OUTPUT_ROUNDS: [3, 4]}
    assert service.requests[0].outputs[-1].name == "output_rounds"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNKNOWN, 500),
    ],
)
async def test_calls_that_fail_have_statuses(code, status):
    service = Service()
    service.code = code
    assert await failure(service) == (status, None, "why it failed")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARG", 400),
        ("UNSUPPORTED", 400),
        ("NOT_FOUND", 503),
        ("UNAVAILABLE", 503),
        ("CANCELLED", 500),
        ("INTERNAL", 500),
    ],
)
async def test_codes_become_statuses(code, status):
    service = Service()
    service.refusal = coded(code, "why\nit failed")
    assert await failure(service) == (status, None, "why it failed")


async def test_an_error_of_a_model_that_is_not_ready_is_the_servers():
    service = Service()
    service.refusal, service.ready = "it is unknown", False
    line = "model 'bls_stream' is not ready: it is unknown"
    assert await failure(service) == (503, "no_server", line)


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [
        ("UNAVAILABLE", "overloaded", 429),
        ("UNAVAILABLE", "model_unavailable", 503),
        ("INTERNAL", "model_timeout", 504),
        ("INTERNAL", "deadline_exceeded", 504),
        ("INVALID_ARG", "invalid_guide", 400),
    ],
)
async def test_classes_become_statuses(code, error, status):
    service = Service()
    service.refusal = coded(code, f"{error}: why")
    assert await failure(service) == (status, error, "why")


async def test_a_call_that_is_unavailable_is_the_server():
    service = Service()
    service.code = grpc.StatusCode.UNAVAILABLE
    status, code, message = await failure(service)
    assert (status, code) == (503, "no_server")
    assert message.endswith(": why it failed")


async def test_a_server_that_is_not_ready_is_not():
    service = Service()
    service.ready = False
    async with connected(service) as triton:
        assert not await triton.ready()


async def test_a_triton_without_the_loop_says_so():
    service = Service()
    service.configs = {"target": {}}
    async with connected(service) as triton:
        with pytest.raises(ApiError, match="0 models of this Triton hold Tandem's loop") as failed:
            await triton.models()
        assert (failed.value.status, failed.value.code) == (503, "not_configured")


async def test_every_reason_of_the_loop_to_end_is_known():
    assert set(FINISH_REASONS) == set(get_args(FinishReason))


async def closed(service, how):
    """The first chunk of a long answer, which is then left."""
    service.ModelStreamInfer = service.wait
    async with connected(service) as triton:
        await how(triton.generate("bls_stream", INPUTS), service)
        with anyio.fail_after(20):
            await service.ended.wait()


async def between_chunks(chunks, _):
    async with aclosing(chunks):
        await anext(chunks)


async def amid_a_chunk(chunks, _):
    await anext(chunks)
    waiting = asyncio.create_task(anext(chunks))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def before_the_first(chunks, service):
    waiting = asyncio.create_task(anext(chunks))
    await service.asked_for_text.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("how", [between_chunks, amid_a_chunk])
async def test_an_answer_that_is_left_is_stopped_and_its_stream_is_not_cancelled(how):
    """Triton's one thread for streams can wait for ever behind a stream that is cancelled."""
    service = Service()
    await closed(service, how)
    (request,), (stop,) = service.requests, service.stops
    assert not service.cancelled
    assert (stop.id, stop.model_name) == (request.id, request.model_name)
    (given,) = stop.inputs
    assert (given.name, list(given.shape)) == (entry.STOP, [1, 1])
    assert stop.raw_input_contents == [b"\1"]


async def test_a_request_that_is_left_before_its_answer_is_cancelled():
    """A `stop` would wait behind it, in the same queue."""
    service = Service()
    service.answers = False
    await closed(service, before_the_first)
    assert service.cancelled
    assert service.stops == []


async def test_a_stream_whose_server_heeds_no_stop_is_cancelled(monkeypatch):
    monkeypatch.setattr(infer_stream, "SECONDS_TO_END", 0.3)
    service = Service()
    service.heeds = False
    await closed(service, between_chunks)
    assert service.cancelled
    assert len(service.stops) == 1  # to ask again would only make a busy server busier


async def test_closing_the_connection_stops_what_is_open():
    """An app that ends does not wait until its requests have left their streams."""
    service = Service()
    service.ModelStreamInfer = service.wait
    async with connected(service) as triton:
        chunks = triton.generate("bls_stream", INPUTS)
        await anext(chunks)
        await triton.close()
        await service.ended.wait()
        assert len(service.stops) == 1
        assert not service.cancelled
        await chunks.aclose()


async def test_a_complete_answer_is_not_stopped():
    service = Service()
    async with connected(service) as triton:
        with anyio.fail_after(20):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
            await triton.close()  # it waits for streams to end, and this one ends by itself
    assert len(service.requests) == 1
    assert service.stops == []


async def test_a_server_whose_streams_are_silent_is_not_ready(monkeypatch):
    monkeypatch.setattr(gateway_triton, "SECONDS_TO_ANSWER", 0.5)
    service = Service()
    async with connected(service) as triton:
        assert await triton.ready()
        service.streams = False
        assert not await triton.ready()


async def test_what_is_served_is_asked_again_after_the_server_was_gone():
    service = Service()
    async with connected(service) as triton:
        await triton.models()
        service.code, service.ready = grpc.StatusCode.UNAVAILABLE, False
        with pytest.raises(ApiError):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
        service.configs = {name: CONFIGS[name] for name in ("bls_stream", "bls")}
        assert [model.name for model in (await triton.models()).models] == ["bls_stream", "bls"]


async def test_a_server_that_comes_back_is_found():
    server, port = await started(Service())
    triton = Triton(f"127.0.0.1:{port}")
    assert await triton.ready()
    await server.stop(0)
    assert not await triton.ready()
    server, _ = await started(Service(), port)
    with anyio.fail_after(20):
        while not await triton.ready():
            await asyncio.sleep(0.05)
    await triton.close()
    await server.stop(0)


async def test_requests_spread_over_all_addresses():
    services = [Service(), Service()]
    servers = [await started(service) for service in services]
    triton = Triton("ipv4:" + ",".join(f"127.0.0.1:{port}" for _, port in servers))
    with anyio.fail_after(20):
        while not all(service.requests for service in services):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    await triton.close()
    for server, _ in servers:
        await server.stop(0)
