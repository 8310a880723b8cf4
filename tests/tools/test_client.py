"""The client sends the right inputs, and reports errors of the server."""

from unittest.mock import MagicMock

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tandem.contract import entry
from tandem.tools.client import client
from tandem.tools.client.client import Client, as_array
from tandem.tools.errors import TandemError


@pytest.mark.parametrize(
    ("tensor", "value", "expected"),
    [
        (entry.MAX_TOKENS, 7, np.array([[7]], np.int32)),
        (entry.SEED, 2**64 - 1, np.array([[2**64 - 1]], np.uint64)),
        (entry.TEMPERATURE, 0.5, np.array([[0.5]], np.float32)),
        (entry.STREAM, True, np.array([[True]])),
        (entry.DRAFTER, "none", np.array([[b"none"]], object)),
        (entry.STOP_WORDS, ["a", "é"], np.array([[b"a", "é".encode()]], object)),
        (entry.TEXT_INPUT, "a\udcff", np.array([[b"a\xff"]], object)),
    ],
)
def test_a_value_is_sent_as_a_batch_of_size_1(tensor, value, expected):
    array = as_array(tensor, value)
    assert array.dtype == expected.dtype
    assert array.tolist() == expected.tolist()


@pytest.mark.parametrize("number", [2**31, 10**20])
def test_a_number_that_its_input_cannot_hold_is_rejected(number):
    with pytest.raises(TandemError, match=f"'max_tokens' must be at most 2147483647; got {number}"):
        as_array(entry.MAX_TOKENS, number)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("127.0.0.1:8001", True),
        ("localhost:8001", True),
        ("[::1]:8001", True),
        ("0.0.0.0:8001", True),
        ("triton.example:8001", False),
        ("10.0.0.7:8001", False),
    ],
)
def test_a_local_server_is_reached_without_a_proxy(monkeypatch, url, here):
    """By default, gRPC uses the environment's proxy even for loopback addresses."""
    made = []
    monkeypatch.setattr(
        client.grpc, "InferenceServerClient", lambda url, channel_args: made.append(channel_args)
    )
    Client(url)
    [options] = made
    assert (options is not None and ("grpc.enable_http_proxy", 0) in options) is here


def test_the_error_says_if_the_server_is_shutting_down(monkeypatch):
    connection = MagicMock()
    rejected = InferenceServerException("Server not ready")
    connection.start_stream = lambda callback: callback(None, rejected)
    monkeypatch.setattr(client.grpc, "InferenceServerClient", lambda *_, **__: connection)
    with pytest.raises(TandemError, match="the server at here:8001 is shutting down"):
        Client("here:8001").answer("bls_stream", {})
