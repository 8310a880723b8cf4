"""A fake gRPC server that answers like Triton with Tandem's models."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tandem.contract import entry
from tandem.gateway.triton.backend import Triton

LOOP = {
    "preprocessing_model": "preprocessing",
    "max_requests": "64",
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
MANY = 20  # chunks that are still sent after a stop
INPUTS = {entry.INPUT_IDS: [1, 2, 3], entry.MAX_TOKENS: 4, entry.STREAM: True}


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Implements the calls that the gateway makes to Triton."""

    def __init__(self):
        self.code = None  # gRPC error code of all calls; None: calls succeed
        self.rejection = None  # error that a stream sends before continuing
        self.line = "why\nit failed"
        self.ready = True
        self.more = {}
        self.configs = CONFIGS
        self.unloaded = ()  # models that Triton knows but doesn't serve
        self.asked = 0  # number of requests for the list of models
        self.streams = True  # whether streams are answered
        self.requests = []
        self.metadata = {}
        self.stops = []
        self.answers = self.heeds = True  # whether requests are answered, and stops obeyed
        self.asked_for_text = asyncio.Event()
        self.ended = asyncio.Event()  # set when a stream has ended after its client left
        self.cancelled = False

    async def RepositoryIndex(self, request, context):  # noqa: N802
        self.asked += 1
        model_index = service_pb2.RepositoryIndexResponse.ModelIndex
        ready = [model_index(name=name, version="1", state="READY") for name in self.configs]
        others = [
            model_index(name=name, state="UNAVAILABLE", reason="unloaded") for name in self.unloaded
        ]
        return service_pb2.RepositoryIndexResponse(models=[*others, *ready])

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
            if self.rejection is not None:
                yield service_pb2.ModelStreamInferResponse(error_message=self.rejection)
                return
            if self.code is not None:
                await context.abort(self.code, self.line)
            last = {entry.FINISH_REASON: b"length", entry.SPEC_DECODE_STATISTICS: b'{"x": 1}'}
            yield response({entry.TEXT_OUTPUT: b"b", entry.OUTPUT_IDS: [[[9]]], **last})

    async def wait(self, requests, context):
        """Send a long answer that ends after a stop."""
        try:
            self.requests.append(await anext(requests))
            self.asked_for_text.set()
            if self.answers:
                yield response({entry.TEXT_OUTPUT: b"a", entry.OUTPUT_IDS: [[[7]]]})
            async for stop in requests:
                self.stops.append(stop)
                for _ in range(MANY):
                    yield response({entry.TEXT_OUTPUT: b"b", entry.OUTPUT_IDS: [[[8]]]})
                if self.heeds:
                    yield service_pb2.ModelStreamInferResponse(error_message="cancelled")
            if not (self.heeds and self.stops):  # then only a cancellation ends the request
                await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled = True
            raise
        finally:
            self.ended.set()


def response(outputs):
    """Return a chunk. Missing outputs are 1."""
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
    """Start a server; return the server and its port."""
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
