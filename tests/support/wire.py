"""Sends raw requests, valid or not, and reads the replies.

Triton's client library checks names, types and shapes, but a hostile client doesn't. So the
requests are raw messages: a `ModelInferRequest` for gRPC, and a body for HTTP.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

PATIENCE = 60.0  # seconds after which a request counts as unanswered
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# With this header, errors in streams have a gRPC code in addition to a message.
CODES_IN_STREAMS = (("triton_grpc_error", "true"),)
NO_ANSWER = "no answer"


class Reply(NamedTuple):
    """The reply to a request.

    code: the gRPC or HTTP status; "OK" for a successful request. line: the error message.
    """

    code: str
    line: str

    @property
    def answered(self) -> bool:
        return self.code == "OK"


@dataclass(frozen=True, repr=False)
class Rpc:
    """A gRPC request. streamed: whether to use the streaming call."""

    message: Any
    streamed: bool

    def send(self, wire: Wire) -> tuple[str, str]:
        stub = wire.stub
        try:
            if not self.streamed:
                stub.ModelInfer(self.message, timeout=PATIENCE)
                return "OK", ""
            call = stub.ModelStreamInfer(
                iter([self.message]), timeout=PATIENCE, metadata=CODES_IN_STREAMS
            )
            lines = [part.error_message for part in call if part.error_message]
        except grpc.RpcError as error:
            late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline Ex" in (
                error.details() or ""
            )
            return NO_ANSWER if late else error.code().name, error.details() or ""
        return ("NO CODE", lines[0]) if lines else ("OK", "")

    def __repr__(self) -> str:
        shown = re.sub(r"\s+", " ", str(self.message))
        how = "ModelStreamInfer" if self.streamed else "ModelInfer"
        return f"{how} {shorten(shown)}"


@dataclass(frozen=True, repr=False)
class Post:
    """An HTTP request."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def send(self, wire: Wire) -> tuple[str, str]:
        connection = http.client.HTTPConnection(wire.http_url, timeout=PATIENCE)
        try:
            connection.request("POST", self.path, self.body, dict(self.headers))
            response = connection.getresponse()
            body = response.read()
        except TimeoutError:
            return NO_ANSWER, ""
        except OSError as error:
            return "connection lost", str(error)
        finally:
            connection.close()
        if response.status != 200:
            return str(response.status), _error_in(body)
        if self.path.endswith("generate_stream") and b'data: {"error"' in body:
            return "OK, then", _error_in(body.rpartition(b"data: ")[2])
        return "OK", ""

    def __repr__(self) -> str:
        return f"POST {self.path} {dict(self.headers) or ''} {shorten(repr(self.body))}"


class Wire:
    """The gRPC and HTTP connections to one server."""

    def __init__(self, server: Any) -> None:
        self.http_url = server.http_url
        self._channel = grpc.insecure_channel(server.grpc_url, UNLIMITED)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def send(self, request: Rpc | Post) -> Reply:
        return Reply(*request.send(self))


def message(
    model: str,
    tensors: list[tuple[str, str, list[int], bytes]],
    *,
    request_id: str = "",
    parameters: dict[str, Any] | None = None,
    outputs: list[str] | None = None,
) -> Any:
    """Return a `ModelInferRequest`. tensors: (name, data type, shape, raw bytes)."""
    made = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, datatype, shape, raw in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(raw)
    for name in outputs or []:
        made.outputs.add(name=name)
    for key, value in (parameters or {}).items():
        _KINDS[type(value)](made.parameters[key], value)
    return made


def shorten(text: str, max_chars: int = 300) -> str:
    text = re.sub(r"(.)\1{30,}", lambda run: f"{run[1]}*{len(run[0])}", text)
    return text if len(text) <= max_chars else f"{text[:max_chars]}... ({len(text)} characters)"


def _set(name: str) -> Callable[[Any, Any], None]:
    return lambda parameter, value: setattr(parameter, name, value)


_KINDS = {
    bool: _set("bool_param"),
    int: _set("int64_param"),
    float: _set("double_param"),
    str: _set("string_param"),
}


def _error_in(body: bytes) -> str:
    """Return the message in Triton's JSON error, or the raw body."""
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
