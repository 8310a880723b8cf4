"""A gRPC server that stands for a server with a remote engine."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype

from tandem.contract import engine as tensors

FACTS = json.dumps({"vocab_size": 10, "max_seq_len": 64})


class Replica(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server with the model `m`, which answers each call with the token 7."""

    def __init__(self, port=0, credentials=None):
        self.facts, self.code, self.line = FACTS, None, "failed"
        self.inputs = tensors.INPUTS
        self.shape, self.datatype = (1, 1, 1), "INT32"  # of the answers
        self.logits = None  # if set, the answers have these, [...]
        self.ids, self.stops, self.metadata = [], [], {}
        self.stopped = threading.Event()  # calls with an id wait for it
        self.stopped.set()
        self.server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        address = f"127.0.0.1:{port}"
        self.port = (
            self.server.add_secure_port(address, credentials)
            if credentials
            else self.server.add_insecure_port(address)
        )
        self.url = f"localhost:{self.port}"
        self.server.start()

    def ModelConfig(self, request, context):  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        if self.facts:
            answer.config.parameters["facts"].string_value = self.facts
        for name in self.inputs:
            answer.config.input.add(name=name)
        return answer

    def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)

    def ModelInfer(self, request, context):  # noqa: N802
        self.metadata = dict(context.invocation_metadata())
        if any(given.name == tensors.STOP for given in request.inputs):
            self.stops.append(request.id)
            self.stopped.set()
        elif request.id:
            self.ids.append(request.id)
            self.stopped.wait(10)
            if self.code:
                context.abort(self.code, self.line)
        answer = service_pb2.ModelInferResponse()
        output = answer.outputs.add(name=tensors.OUTPUT_IDS, datatype=self.datatype)
        output.shape.extend(self.shape)
        answer.raw_output_contents.append(np.array([7], np.int32).tobytes())
        if self.logits is not None:
            dtype = np_to_triton_dtype(self.logits.dtype)
            output = answer.outputs.add(name=tensors.GENERATION_LOGITS, datatype=dtype)
            output.shape.extend(self.logits.shape)
            answer.raw_output_contents.append(self.logits.tobytes())
        return answer
