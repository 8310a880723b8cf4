"""A replica: one server that has the remote model, and the connection to it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from tandem.contract import engine as tensors
from tandem.contract.model_parameters import FACTS
from tandem.engines.errors import LoadError, UnreachableError
from tandem.engines.remote.settings import RemoteModel

CHECK_SECONDS = 2.0  # for an answer about the model
CALL_SECONDS = 5.0  # for one token
MAX_MESSAGE = 2**31 - 1
# A ping interval of five minutes is the shortest that Triton allows by default. Only with pings,
# gRPC limits the time until the peer acknowledges data, so dead connections end after this timeout.
PING_MS, ACKNOWLEDGE_MS = 300_000, 5_000
MAX_RECONNECT_MS = 1_000
SCALARS = frozenset(tensor for tensor in tensors.INPUTS if tensor.scalar)
REQUEST_ID = re.compile(r"^\[request id: [^]]*\] ")  # Triton writes it before some messages


class Replica:
    """A server that has the remote model.

    name: `host:port`, with the address if a host name has several. ready: whether it may get calls.
    reason: why not. suspect: whether a call took too long, so that the replica must be checked.
    calls: number of running calls. last_chosen: number of its last new sequence.
    """

    def __init__(self, settings: RemoteModel, host: str, address: str, name: str) -> None:
        self.name = name
        self.ready = self.suspect = False
        self.reason = "it wasn't reached yet"
        self.calls = self.last_chosen = 0
        self._settings = settings
        options = [
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_timeout_ms", ACKNOWLEDGE_MS),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
            ("grpc.default_authority", host),  # the name in the server's certificate
            ("grpc.use_local_subchannel_pool", 1),
        ]
        try:
            self.client = triton.InferenceServerClient(
                address,
                ssl=settings.tls,
                root_certificates=settings.ca_file,
                private_key=settings.key_file,
                certificate_chain=settings.cert_file,
                channel_args=options,
            )
        except OSError as error:
            raise LoadError(f"can't read {error.filename}: {error.strerror}") from error

    def headers(self) -> dict[str, str]:
        """Return the headers of a call. The token's file is read again, because it may change.

        Triton itself checks only headers that begin with `triton-grpc-protocol-`.
        """
        path = self._settings.token_file
        if path is None:
            return {}
        try:
            bearer = f"Bearer {Path(path).read_text().strip()}"
        except OSError as error:
            raise UnreachableError(f"can't read {path}: {error.strerror}") from error
        return {"authorization": bearer, "triton-grpc-protocol-authorization": bearer}

    def make_smallest_call(self) -> None:
        """Raise UnreachableError if the model doesn't answer, because its process has died."""
        names = (tensors.OUTPUT_IDS, tensors.SEQUENCE_LENGTH)
        try:
            self.client.infer(
                self._settings.model,
                smallest_inputs(),
                outputs=[triton.InferRequestedOutput(name) for name in names],
                client_timeout=CALL_SECONDS,
                headers=self.headers(),
            )
        except triton.InferenceServerException as error:
            raise UnreachableError(f"{self.name} doesn't serve calls: {line(error)}") from error

    def read_facts(self) -> str:
        """Return the model's parameter `facts`.

        Raises UnreachableError, or LoadError if the model isn't one that this version can call.
        """
        name = self._settings.model
        try:
            headers, timeout = self.headers(), CHECK_SECONDS
            answer = self.client.get_model_config(name, headers=headers, client_timeout=timeout)
            config = answer.config
            if not self.client.is_model_ready(name, headers=headers, client_timeout=timeout):
                raise UnreachableError(f"model '{name}' at {self.name} isn't ready")
        except triton.InferenceServerException as error:
            raise UnreachableError(
                f"can't reach model '{name}' at {self.name}: {line(error)}"
            ) from error
        what = f"model '{name}' at {self.name}"
        if FACTS not in config.parameters:
            raise LoadError(f"{what} isn't one of Tandem's engines, or is from an earlier version")
        lacking = sorted(set(tensors.INPUTS) - {tensor.name for tensor in config.input})
        if lacking:
            raise LoadError(f"{what} lacks the input {lacking[0]}; use the same version of Tandem")
        if config.model_transaction_policy.decoupled:
            raise LoadError(f"{what} must have `decoupled: false` in its profile")
        facts: str = config.parameters[FACTS].string_value
        return facts


def triton_input(name: str, array: NDArray[Any]) -> triton.InferInput:
    """Return an input for a call. Triton removed a scalar's second axis when it arrived here."""
    array = np.ascontiguousarray(array.reshape(1, 1) if name in SCALARS else array)
    given = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return given


def smallest_inputs() -> list[triton.InferInput]:
    """Return the inputs of the cheapest call: one new token after one token of context."""
    arrays = {
        tensors.INPUT_IDS: np.zeros((1, 1), np.int32),
        tensors.INPUT_LENGTHS: np.ones((1, 1), np.int32),
        tensors.REQUEST_OUTPUT_LEN: np.ones((1, 1), np.int32),
    }
    return [triton_input(name, array) for name, array in arrays.items()]


def line(error: triton.InferenceServerException) -> str:
    """Return the first line of an error's message, without the id of the request."""
    return REQUEST_ID.sub("", str(error.message()).strip().partition("\n")[0])


def resolve(settings: RemoteModel) -> Iterator[tuple[str, str, str]]:
    """Yield host, address for gRPC, and name of each replica.

    If a host has IPv4 and IPv6 addresses, only one kind is used, so that no server counts twice.
    Raises UnreachableError if no host name can be resolved.
    """
    found, reason = False, ""
    for url in settings.url:
        host, _, port = url.rpartition(":")
        try:
            answers = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            reason = f"can't resolve {host}: {error.strerror}"
            continue
        family = min(answer[0] for answer in answers)  # AF_INET is less than AF_INET6
        addresses = sorted({str(answer[4][0]) for answer in answers if answer[0] == family})
        for address in addresses:
            found = True
            named = url if len(addresses) == 1 else f"{host} ({address}):{port}"
            ipv6 = family == socket.AF_INET6
            yield host, f"ipv6:[{address}]:{port}" if ipv6 else f"ipv4:{address}:{port}", named
    if not found:
        raise UnreachableError(reason)
