"""Errors are one line that names the input or model, with the right code in each protocol."""

import json
import re
import urllib.error
import urllib.request
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc as client
from benchmarks.soak.processes import is_at_rest
from entries import ask_one, inputs, rejection, streaming, tensor
from live_triton import eventually
from metrics import total
from tritonclient.utils import InferenceServerException
from wire import Post, Rpc, Wire, message

from tandem.tools import cli as command

from .conftest import gateway_to

ENTRIES = ["bls", "ensemble"]
ALONE = {"drafter": "none"}


@pytest.fixture(scope="module")
def full(fallible):
    """A server without guides, for one running and one waiting request."""
    admission = {"max_requests": 1, "max_queue": 1}
    with fallible(admission=admission, limits={"max_guide_bytes": 0}) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(full):
    with gateway_to(full, full.tokenizer) as url:
        yield url


@pytest.fixture(autouse=True)
def at_rest(request):
    yield
    if "full" in request.fixturenames:
        assert eventually(lambda: is_at_rest(request.getfixturevalue("full")))


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        ("bls_stream", {"prompts": b"a\xff"}, "input 'text_input' must be UTF-8; got byte 0xff"),
        ("bls", {"max_tokens": 4092}, "input 'max_tokens' is 4092 .*; the limit is"),
        ("ensemble", {"temperature": float("nan")}, "input 'temperature' must be"),
        (
            "bls",
            {"stop": True},
            "input 'stop' isn't supported by this model; send it to 'bls_stream'",
        ),
        (
            "ensemble",
            {"stream": True},
            "input 'stream' isn't supported by this model; .*'bls_stream'",
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_the_error_names_an_invalid_value(server, model, values, message):
    text = rejection(server, model, **{"prompts": "x", "max_tokens": 4, **values})
    assert "\n" not in text
    assert "Traceback" not in text
    assert re.search(message, text), text
    assert ask_one(server, "bls", "x", max_tokens=2).finish_reason == "length"


def wrong_type():
    made = client.InferInput("max_tokens", [1, 1], "FP32")
    made.set_data_from_numpy(np.ones((1, 1), np.float32))
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([tensor("max_tokens", 4)], "text_input"),
        ([tensor("text_input", "x"), wrong_type()], "max_tokens"),
    ],
    ids=["missing", "wrong type"],
)
def test_the_error_names_an_input_that_is_missing_or_has_a_wrong_type(server, made, message):
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException, match=message),
    ):
        connection.infer("bls", made)


def requests(entry, *, timeout=None, **values):
    """Return a request over gRPC, over HTTP, and as a stream of `bls_stream`."""
    values = {"max_tokens": 4} | values
    parameters = {"timeout": timeout} if timeout else {}
    plain, streamed = (
        [(i.name(), i.datatype(), list(i.shape()), i._get_content()) for i in inputs("x", **given)]
        for given in (values, values | {"stream": True})
    )
    made = [
        {"name": n, "datatype": d, "shape": s, "parameters": {"binary_data_size": len(raw)}}
        for n, d, s, raw in plain
    ]
    head = json.dumps({"parameters": parameters, "inputs": made}).encode()
    size = (("Inference-Header-Content-Length", str(len(head))),)
    return [
        Rpc(message(entry, plain, parameters=parameters), streamed=False),
        Post(f"/v2/models/{entry}/infer", head + b"".join(raw for *_, raw in plain), size),
        Rpc(message("bls_stream", streamed, parameters=parameters), streamed=True),
    ]


def send(server, request):
    with closing(Wire(server)) as wire:
        return wire.send(request)


def everywhere(server, entry, **values):
    return [send(server, request) for request in requests(entry, **values)]


def through_the_gateway(url, **fields):
    """Return a completion's status, error code and seconds to wait before a retry."""
    body = json.dumps({"prompt": "x", "max_tokens": 4, "drafter": "none"} | fields).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as rejected:
        urllib.request.urlopen(request)
    with rejected.value as answer:
        error = json.loads(answer.read())["error"]
        return answer.code, error["code"], answer.headers["retry-after"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bad_request_is_reported_as_an_invalid_argument(full, entry):
    line = "input 'max_tokens' must be between 1 and 8192; got 1000000"
    statuses = {("INVALID_ARGUMENT", line), ("400", line)}
    assert {*everywhere(full, entry, max_tokens=10**6)} == statuses


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            b'{"text_input": "x", "max_tokens": 0}',
            "input 'max_tokens' must be between 1 and",
        ),
        (
            b'{"text_input": "x", "max_tokens": 4, "temprature": 0.5}',
            "input 'temprature' isn't known; did you mean 'temperature'?",
        ),
        (
            b'{"text_input": "x", "max_tokens": 4, "id": "\xff"}',
            "the request's id and parameters must be UTF-8",
        ),
    ],
    ids=["value", "misspelled", "encoding"],
)
@pytest.mark.parametrize("path", ["bls/generate", "bls_stream/generate_stream"])
def test_the_generate_endpoint_has_the_right_error_status(server, path, body, line):
    reply = send(server, Post(f"/v2/models/{path}", body))
    assert reply.code == "400"
    assert line in reply.line


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_full_server_is_reported_as_unavailable(full, gateway, entry, capsys):
    with (
        full.faults.inject("target", "hold"),
        streaming(full, "x", max_tokens=4),
        streaming(full, "x", max_tokens=4),
    ):
        for state in ("running", "waiting"):
            assert eventually(lambda state=state: total(full, f"tandem_requests_{state}") == 1)
        for status, line in everywhere(full, entry):
            assert status in ("UNAVAILABLE", "503")
            assert line.startswith("overloaded: ")
        assert through_the_gateway(gateway) == (429, "overloaded", "1")
        with urllib.request.urlopen(f"{gateway}/health") as health:
            assert health.status == 200
        # The exit status equals the status for a lost connection.
        assert command.main(["generate", "x", "--url", full.grpc_url]) == 1
        assert capsys.readouterr().err.startswith("tandem: overloaded: ")


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_engine_that_shuts_down_is_reported_as_unavailable(full, gateway, entry):
    with full.faults.inject("target", "leave"):
        for status, line in everywhere(full, entry, **ALONE):
            assert status in ("UNAVAILABLE", "503")
            assert line.startswith("model_unavailable: model 'target' failed: ")
        for stream in (False, True):
            response = through_the_gateway(gateway, stream=stream)
            assert response == (503, "model_unavailable", None)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_request_timeout_is_reported_as_an_internal_error(full, entry):
    line = "deadline_exceeded: the request exceeded its timeout of 0.2 s"
    for request, status in zip(requests(entry, timeout=200_000), ("INTERNAL", "500"), strict=False):
        with full.faults.inject("target", "hold"):
            assert send(full, request) == (status, line)
        assert eventually(lambda: is_at_rest(full))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_target_failure_is_reported_as_an_internal_error(full, entry):
    with full.faults.inject("target", "raise"):
        for status, line in everywhere(full, entry, **ALONE):
            assert status in ("INTERNAL", "500")
            assert line.startswith("model 'target' failed: ")


def test_the_error_names_unsupported_inputs(full, gateway):
    """Emulated engines don't support penalties or prompt log-probabilities."""
    for name, asked in (
        ("return_prompt_log_probs", {"return_prompt_log_probs": True}),
        ("num_top_log_probs", {"return_log_probs": True, "num_top_log_probs": 2}),
    ):
        status, line = everywhere(full, "bls", **asked)[0]
        assert status == "INVALID_ARGUMENT"
        assert line.startswith(f"input '{name}' isn't supported by this deployment's target engine")
    assert through_the_gateway(gateway, logprobs=2) == (400, None, None)
    for entry in ENTRIES:
        for status, line in everywhere(full, entry, repetition_penalty=1.5, **ALONE):
            assert status in ("UNIMPLEMENTED", "501")
            assert line.startswith("model 'target' failed: repetition_penalty")
    guide = {"guided_decoding_guide_type": "json", "guided_decoding_guide": "x"}
    line = "'guided_decoding_guide_type' isn't supported by this deployment: its profile sets"
    assert line in rejection(full, "bls", max_tokens=4, **guide)
