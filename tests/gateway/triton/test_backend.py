"""The gateway's calls to Triton, over a real connection to a fake server."""

import asyncio
import json
import socket
import threading
from typing import get_args

import anyio
import grpc
import pytest
from triton_service import CONFIGS, INPUTS, Service, connected, started

from tandem.bls.ports import FinishReason
from tandem.contract import entry
from tandem.contract.entry import is_forwarded
from tandem.contract.errors import prefix_code
from tandem.gateway.errors import ApiError
from tandem.gateway.triton import backend
from tandem.gateway.triton.backend import FINISH_REASONS, Triton

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("event_loop_of_all")]


async def test_models_are_read_from_tritons_configurations():
    async with connected(Service()) as triton:
        models = await triton.models()
        assert models.stream_model == "bls_stream"
        assert [(model.name, model.drafter) for model in models.models] == [
            ("bls_stream", None),
            ("bls", None),
            ("ensemble", "none"),
        ]
        assert models.max_model_len == 1008
        assert not models.add_special_tokens
        assert not models.skip_special_tokens
        assert await triton.ready()


async def test_each_adapter_of_the_target_is_listed_as_a_model():
    service, loop = Service(), CONFIGS["bls_stream"]
    target = json.loads(loop["target"]) | {"lora_adapters": ["sql"]}
    service.configs = CONFIGS | {"bls_stream": loop | {"target": json.dumps(target)}}
    async with connected(service) as triton:
        models = await triton.models()
        assert models.find("sql").lora_name == "sql"
        assert models.stream_model == "bls_stream"


async def test_a_model_that_is_not_loaded_is_skipped():
    """Triton has no configuration for a model that isn't loaded, such as a draft engine."""
    service = Service()
    service.unloaded = ("another", "draft")
    async with connected(service) as triton:
        assert [model.name for model in (await triton.models()).models] == [
            *("bls_stream", "bls", "ensemble")
        ]


async def test_concurrent_requests_read_the_models_only_once():
    service = Service()
    async with connected(service) as triton:
        first = asyncio.create_task(triton.models())
        others = [asyncio.create_task(triton.models()) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()  # doesn't cancel the other calls
        assert len({id(models) for models in await asyncio.gather(*others)}) == 1
    assert service.asked == 1


async def test_concurrent_requests_get_the_same_failure_and_can_retry():
    service = Service()
    service.configs = {"target": {}}
    async with connected(service) as triton:
        got = await asyncio.gather(*(triton.models() for _ in range(20)), return_exceptions=True)
        assert {(error.status, error.code) for error in got} == {(503, "not_configured")}
        assert "Tandem's loop; it serves 0" in got[0].message
        assert service.asked == 1
        service.configs = CONFIGS
        assert (await triton.models()).max_model_len == 1008


async def test_failures_are_not_cached(monkeypatch):
    service = Service()
    async with connected(service) as triton:
        with monkeypatch.context() as broken:
            broken.setattr("tandem.gateway.triton.backend.served_models", [].index)
            with pytest.raises(ValueError, match="is not in list"):
                await triton.models()
        assert (await triton.models()).max_model_len == 1008


async def test_response_chunks_are_decoded():
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
    assert "triton_grpc_error" not in service.metadata  # this header crashes Triton 2.51


async def failure(service):
    """Return the error that a client receives."""
    async with connected(service) as triton:
        await triton.models()
        with pytest.raises(ApiError) as failed:
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    return failed.value.status, failed.value.code, failed.value.message


async def test_optional_outputs_are_decoded_on_request():
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
async def test_grpc_errors_are_mapped_to_http_statuses(code, status):
    service = Service()
    service.code = code
    assert await failure(service) == (status, None, "why it failed")


async def test_an_error_of_an_unready_model_has_status_503():
    service = Service()
    service.rejection, service.ready = "it is unknown", False
    line = "model 'bls_stream' isn't ready: it is unknown"
    assert await failure(service) == (503, "no_server", line)


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [
        ("INVALID_ARG", None, 400),
        ("UNSUPPORTED", None, 400),
        ("NOT_FOUND", None, 503),
        ("UNAVAILABLE", None, 503),
        ("CANCELLED", None, 500),
        ("INTERNAL", None, 500),
        ("UNAVAILABLE", "overloaded", 429),
        ("UNAVAILABLE", "model_unavailable", 503),
        ("INTERNAL", "model_timeout", 504),
        ("INTERNAL", "deadline_exceeded", 504),
        ("INVALID_ARG", "invalid_guide", 400),
    ],
)
async def test_error_codes_and_classes_are_mapped_to_http_statuses(code, error, status):
    service = Service()
    line = "why\nit failed"
    service.rejection = prefix_code(code, f"{error}: {line}" if error else line)
    assert await failure(service) == (status, error, "why it failed")


async def test_an_error_has_the_input_that_is_wrong():
    service = Service()
    service.rejection = prefix_code("INVALID_ARG", "input 'seed' is wrong", "seed")
    async with connected(service) as triton:
        with pytest.raises(ApiError) as failed:
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    assert (failed.value.param, failed.value.message) == ("seed", "input 'seed' is wrong")


async def test_an_unreachable_server_has_status_503():
    service = Service()
    service.code = grpc.StatusCode.UNAVAILABLE
    status, code, message = await failure(service)
    assert (status, code) == (503, "no_server")
    assert message.startswith("no Triton responds at ")
    assert "why it failed" not in message  # gRPC's own message


async def test_readiness_requires_a_ready_server():
    service = Service()
    service.ready = False
    async with connected(service) as triton:
        assert not await triton.ready()


async def test_the_gateway_knows_every_finish_reason_of_the_loop():
    assert set(FINISH_REASONS) == set(get_args(FinishReason))


async def test_readiness_requires_working_streams(monkeypatch):
    service = Service()
    async with connected(service) as triton:
        assert await triton.ready()
        monkeypatch.setattr(backend, "SECONDS_TO_ANSWER", 0.5)
        service.streams = False
        assert not await triton.ready()


async def test_the_models_are_reread_after_the_server_restarts():
    service = Service()
    async with connected(service) as triton:
        await triton.models()
        service.code, service.ready = grpc.StatusCode.UNAVAILABLE, False
        with pytest.raises(ApiError):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
        service.configs = {name: CONFIGS[name] for name in ("bls_stream", "bls")}
        assert [model.name for model in (await triton.models()).models] == ["bls_stream", "bls"]


async def test_proxy_environment_variables_are_ignored(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server, port = await started(Service())
    triton = Triton(f"127.0.0.1:{port}")
    assert await triton.ready()
    await triton.close()
    await server.stop(0)


async def test_the_gateway_reconnects_to_a_restarted_server():
    with socket.socket() as reserved:  # no other process can get the port meanwhile
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        reserved.bind(("127.0.0.1", 0))
        server, port = await started(Service(), reserved.getsockname()[1])
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


async def test_requests_are_distributed_over_all_addresses():
    services = [Service(), Service()]
    servers = [await started(service) for service in services]
    triton = Triton("ipv4:" + ",".join(f"127.0.0.1:{port}" for _, port in servers))
    with anyio.fail_after(20):
        while not all(service.requests for service in services):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
    await triton.close()
    for server, _ in servers:
        await server.stop(0)


@pytest.mark.parametrize("words", [["x"] * 10_000, ["x" * 30_000]])
async def test_large_inputs_are_converted_on_another_thread(threads_of, words):
    """Otherwise one request with many answers and stop strings would delay all streams."""
    large = INPUTS | {entry.STOP_WORDS: words}
    async with connected(Service()) as triton:
        threads = threads_of(backend, "_tensor")
        _ = [chunk async for chunk in triton.generate("bls_stream", large)]
    assert len([t for t in threads if t is not threading.current_thread()]) == len(large)
