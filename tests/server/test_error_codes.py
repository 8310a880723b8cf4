"""The code of every error, as each kind of client sees it, through every entry."""

import json
import urllib.error
import urllib.request

import pytest
import tritonclient.grpc as client
from crowd import Crowd, idle, metric
from entries import inputs, refusal, streaming
from live_triton import eventually
from tritonclient.utils import InferenceServerException

from tandem.gateway import server as gateway_server
from tandem.gateway.app import create_app
from tandem.gateway.settings import GatewaySettings

from .conftest import emulated_zero, serving_fallibly

ENTRIES = ["bls", "ensemble"]
TOO_LONG = {"max_tokens": 10**6}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Emulated engines that fail on demand, and room for one request."""
    folder = tmp_path_factory.mktemp("codes")
    admission = {"max_requests": 1, "max_queue": 0}
    planned = emulated_zero(
        folder, admission=admission, timeouts={"target": 30.0}, limits={"max_guide_bytes": 0}
    )
    with serving_fallibly(planned, folder) as running:
        running.tokenizer = planned.tokenizer.folder
        yield running


@pytest.fixture(scope="module")
def gateway_url(server):
    app = create_app(GatewaySettings(server.grpc_url, server.tokenizer))
    with gateway_server.listen("127.0.0.1", 0) as bound, gateway_server.serving(app, bound):
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(autouse=True)
def at_rest(server):
    yield
    assert eventually(lambda: idle(server))


def over_grpc(server, entry, **values):
    """The status and the line of a plain `infer`."""
    timeout = values.pop("timeout", None)
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException) as refused,
    ):
        connection.infer(entry, inputs("x", **{"max_tokens": 4} | values), timeout=timeout)
    return refused.value.status().removeprefix("StatusCode."), refused.value.message()


def over_http(server, entry, **values):
    """The status and the line of a plain `infer`."""
    parameters = {"timeout": values.pop("timeout")} if "timeout" in values else {}
    tensors = {"text_input": ("BYTES", "x"), "max_tokens": ("INT32", values.get("max_tokens", 4))}
    if "drafter" in values:
        tensors["drafter"] = ("BYTES", values["drafter"])
    body = {
        "parameters": parameters,
        "inputs": [
            {"name": name, "shape": [1, 1], "datatype": kind, "data": [value]}
            for name, (kind, value) in tensors.items()
        ],
    }
    url = f"http://{server.http_url}/v2/models/{entry}/infer"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()))
    with refused.value as answer:
        return answer.code, json.loads(answer.read())["error"]


def over_a_stream(server, **values):
    """The status and the line of a streamed request, of a client that asks for the status."""
    with client.InferenceServerClient(server.grpc_url) as connection:
        arrived = []
        connection.start_stream(
            lambda result, error: arrived.append(error), headers={"triton_grpc_error": "true"}
        )
        connection.async_stream_infer(
            "bls_stream", inputs("x", **{"max_tokens": 4, "stream": True} | values)
        )
        assert eventually(lambda: arrived)
        connection.stop_stream(cancel_requests=True)
    return arrived[0].status().removeprefix("StatusCode."), arrived[0].message()


def through_the_gateway(url, **fields):
    """The status, the error's code and the seconds to wait of a completion."""
    body = json.dumps({"prompt": "x", "max_tokens": 4, "drafter": "none"} | fields).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        error = json.loads(answer.read())["error"]
        return answer.code, error["code"], answer.headers["retry-after"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bad_request_is_an_invalid_argument(server, entry):
    line = "input 'max_tokens': 1000000 given, must lie in 1..8192"
    assert over_grpc(server, entry, **TOO_LONG) == ("INVALID_ARGUMENT", line)
    assert over_http(server, entry, **TOO_LONG) == (400, line)
    assert over_a_stream(server, **TOO_LONG) == ("INVALID_ARGUMENT", line)


@pytest.mark.parametrize(
    ("given", "status", "line"),
    [
        ({"max_tokens": 0}, 400, "input 'max_tokens': 0 given"),
        ({"max_tokens": [1, 2, 3]}, 400, "batch size does not match"),
        ({"nonsense": 1}, 400, "'nonsense'"),
        ({"max_tokens": [[1, 2, 3]]}, 500, "Shape does not match true shape of 'data' field"),
        ({"max_tokens": "four"}, 500, "Unable to parse"),
        ({"max_tokens": {"four": 4}}, 500, "Unable to parse"),
    ],
)
@pytest.mark.parametrize("path", ["bls/generate", "bls_stream/generate_stream"])
def test_generate_answers_400_unless_triton_cannot_read_a_value(server, path, given, status, line):
    body = json.dumps({"text_input": "x", "max_tokens": 4} | given).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/{path}", body)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == status
        assert line in answer.read().decode()


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_full_server_is_unavailable(server, gateway_url, entry):
    with (
        server.faults.of("target", "hold"),
        streaming(server, "x", max_tokens=4),
        Crowd(server, 1),
    ):
        assert eventually(lambda: metric(server, "tandem_requests_running") == 1)
        for status, line in (
            over_grpc(server, entry),
            over_http(server, entry),
            over_a_stream(server),
        ):
            assert status in ("UNAVAILABLE", 503)
            assert line.startswith("overloaded: ")
        assert through_the_gateway(gateway_url) == (429, "overloaded", "1")
        with urllib.request.urlopen(f"{gateway_url}/health") as health:
            assert health.status == 200


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_engine_that_leaves_is_unavailable_and_nobody_is_overloaded(server, gateway_url, entry):
    with server.faults.of("target", "leave"):
        for status, line in (
            over_grpc(server, entry, drafter="none"),
            over_http(server, entry, drafter="none"),
            over_a_stream(server, drafter="none"),
        ):
            assert status in ("UNAVAILABLE", 503)
            assert line.startswith("model_unavailable: model 'target' failed: ")
        for stream in (False, True):
            told = through_the_gateway(gateway_url, stream=stream)
            assert told == (503, "model_unavailable", None)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_request_that_used_its_time_up_is_nothing_to_send_again(server, entry):
    line = "deadline_exceeded: the request took longer than 0.2 s, which is its time-out"
    with server.faults.of("target", "hold"):
        assert over_grpc(server, entry, timeout=200_000) == ("INTERNAL", line)
    assert eventually(lambda: idle(server))
    with server.faults.of("target", "hold"):
        assert over_http(server, entry, timeout=200_000) == (500, line)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_target_that_failed_is_an_internal_error(server, entry):
    with server.faults.of("target", "raise"):
        for status, line in (
            over_grpc(server, entry, drafter="none"),
            over_http(server, entry, drafter="none"),
            over_a_stream(server, drafter="none"),
        ):
            assert status in ("INTERNAL", 500)
            assert line.startswith("model 'target' failed: ")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"return_prompt_log_probs": True}, "return_prompt_log_probs"),
        ({"return_log_probs": True, "num_top_log_probs": 2}, "num_top_log_probs"),
    ],
)
def test_log_probs_that_the_target_does_not_tell_are_refused_by_name(
    server, gateway_url, asked, name
):
    line = (
        f"input '{name}' is not supported by this deployment: its target engine does not tell them"
    )
    assert over_grpc(server, "bls", **asked) == ("INVALID_ARGUMENT", line)
    assert through_the_gateway(gateway_url, logprobs=2) == (400, None, None)


def test_what_the_target_never_does_is_unimplemented(server):
    """The emulated language has no penalties."""
    for entry in ENTRIES:
        status, line = over_grpc(server, entry, repetition_penalty=1.5, drafter="none")
        assert status == "UNIMPLEMENTED"
        assert line.startswith("model 'target' failed: model 'target': repetition_penalty")
    status, _ = over_a_stream(server, repetition_penalty=1.5, drafter="none")
    assert status == "UNIMPLEMENTED"


@pytest.mark.parametrize("text", ["x", ""])
def test_a_deployment_may_take_no_guides(server, text):
    guide = {"guided_decoding_guide_type": "json", "guided_decoding_guide": text}
    told = refusal(server, "bls", max_tokens=4, **guide)
    line = "input 'guided_decoding_guide_type' is not supported by this deployment"
    assert told.endswith(f"{line}: limits.max_guide_bytes of its profile is 0")
