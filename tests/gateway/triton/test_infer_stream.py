"""If a client leaves an answer early, its request ends, but its stream remains usable."""

import asyncio
from contextlib import aclosing

import anyio
import pytest
from triton_service import INPUTS, Service, connected, response

from tandem.contract import entry
from tandem.gateway.errors import ApiError
from tandem.gateway.triton import backend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("event_loop_of_all")]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Don't give up on streams that end late on a busy machine."""
    monkeypatch.setattr(backend, "SECONDS_TO_CLOSE", 60.0)


async def closed(service, how):
    """Read the first chunk of a long answer, and leave the answer."""
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
async def test_leaving_an_answer_stops_it_without_cancelling_the_stream(how):
    """Cancelling a stream can block Triton's only thread for streams."""
    service = Service()
    await closed(service, how)
    (request,), (stop,) = service.requests, service.stops
    assert not service.cancelled
    assert (stop.id, stop.model_name) == (request.id, request.model_name)
    (given,) = stop.inputs
    assert (given.name, list(given.shape)) == (entry.STOP, [1, 1])
    assert stop.raw_input_contents == [b"\1"]


async def test_leaving_before_the_first_response_cancels_the_stream():
    """A `stop` would wait in the same queue as the request that it should stop."""
    service = Service()
    service.answers = False
    await closed(service, before_the_first)
    assert service.cancelled
    assert service.stops == []


async def test_a_stream_is_cancelled_if_the_server_ignores_the_stop(monkeypatch):
    monkeypatch.setattr(backend, "SECONDS_TO_END", 1.0)
    service = Service()
    service.heeds = False
    await closed(service, between_chunks)
    assert service.cancelled
    assert len(service.stops) == 1  # one `stop` suffices


async def test_closing_the_connection_stops_open_requests():
    """An application may end while requests still use their streams."""
    service = Service()
    service.ModelStreamInfer = service.wait
    async with connected(service) as triton:
        chunks = triton.generate("bls_stream", INPUTS)
        await anext(chunks)
        await triton.close()
        with anyio.fail_after(20):
            await service.ended.wait()
        assert len(service.stops) == 1
        assert not service.cancelled
        await chunks.aclose()


async def test_closing_the_connection_ends_a_request_that_is_being_read():
    """The reader and `leave` wait for the same response, and both must continue."""
    service = Service()
    service.ModelStreamInfer = service.wait
    async with connected(service) as triton:
        stream = triton.generate("bls_stream", INPUTS)
        await anext(stream)

        async def read_on():
            async for _ in stream:
                pass

        reading = asyncio.create_task(read_on())
        await asyncio.sleep(0)
        await triton.close()
        with anyio.fail_after(20):
            await service.ended.wait()
        await asyncio.gather(reading, return_exceptions=True)
    assert len(service.stops) == 1
    assert not service.cancelled


async def test_requests_get_an_error_when_the_gateway_stops():
    service = Service()
    service.ModelStreamInfer = service.wait
    async with connected(service) as triton:
        chunks = triton.generate("bls_stream", INPUTS)
        await anext(chunks)
        triton.stop()
        for running_or_new in (chunks, triton.generate("bls_stream", INPUTS)):
            with pytest.raises(ApiError) as failed, anyio.fail_after(20):
                await anext(running_or_new)
            assert failed.value.code == "gateway_stopped"
        with anyio.fail_after(20):
            await service.ended.wait()
    assert len(service.requests) == len(service.stops) == 1
    assert not service.cancelled


async def test_a_request_whose_inputs_are_converted_during_the_stop_is_not_sent(monkeypatch):
    service = Service()
    async with connected(service) as triton:

        async def stop_meanwhile(_, work):
            triton.stop()
            return work()

        monkeypatch.setattr(backend, "offload", stop_meanwhile)
        with pytest.raises(ApiError) as failed, anyio.fail_after(20):
            await anext(triton.generate("bls_stream", INPUTS))
    assert failed.value.code == "gateway_stopped"
    assert service.requests == []


async def test_a_slow_client_gets_the_shutdown_error_instead_of_unread_chunks():
    service = Service()
    async with connected(service) as triton:
        chunks = triton.generate("bls_stream", INPUTS)
        await anext(chunks)
        (stream,) = triton._open
        with anyio.fail_after(20):
            while stream.responses.empty():
                await asyncio.sleep(0.01)
        triton.stop()
        with pytest.raises(ApiError, match="shutting down"):
            await anext(chunks)


async def test_a_complete_answer_is_not_stopped():
    service = Service()
    async with connected(service) as triton:
        with anyio.fail_after(20):
            _ = [chunk async for chunk in triton.generate("bls_stream", INPUTS)]
            await triton.close()  # waits for the stream to end
    assert len(service.requests) == 1
    assert service.stops == []


async def test_a_stream_that_ends_too_early_leaves_no_task():
    """The task that sends requests must end although the stream can no longer be cancelled."""
    service = Service()

    async def end(requests, _):
        await anext(aiter(requests))
        yield response({entry.TEXT_OUTPUT: b"a", entry.OUTPUT_IDS: [[[7]]]})

    service.ModelStreamInfer = end
    async with connected(service) as triton:
        async for _ in triton.generate("bls_stream", INPUTS):
            await asyncio.sleep(0.2)
        await triton.close()
        assert "_consume_request_iterator" not in repr(asyncio.all_tasks())
