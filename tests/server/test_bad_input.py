"""Bad input gets one line that names the input; the server stays as it was."""

import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as client
from entries import ask_one, inputs, refusal, tensor
from tritonclient.utils import InferenceServerException


@pytest.fixture(autouse=True)
def unharmed(server):
    yield
    assert ask_one(server, "bls", "x", max_tokens=2).finish_reason == "length"


@pytest.mark.parametrize("model", ["bls", "bls_stream", "ensemble"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompts": ""}, "input 'text_input' is empty; send at least one character"),
        ({"prompts": b"a\xff"}, "input 'text_input' is not valid UTF-8: byte 0xff at position 1"),
        ({"max_tokens": 0}, "input 'max_tokens': 0 given, must lie in 1.."),
        ({"max_tokens": -3}, "input 'max_tokens': -3 given, must lie in 1.."),
        ({"max_tokens": 1020}, "input 'max_tokens': .* exceed"),
        ({"num_draft_tokens": -2}, "input 'num_draft_tokens': -2 given, must lie in -1..16"),
        ({"num_draft_tokens": 17}, "input 'num_draft_tokens': 17 given, must lie in -1..16"),
        ({"beam_width": 2}, "input 'beam_width': 2 given, only 1 is supported"),
        ({"num_return_sequences": 2}, "input 'num_return_sequences': 2 given, only 1"),
        ({"temperature": -0.5}, "input 'temperature': -0.5 given, must be at least 0"),
        ({"temperature": float("nan")}, "input 'temperature': nan given, must be"),
        ({"top_p": 1.5}, "input 'top_p': 1.5 given, must be at least 0 and at most 1"),
        ({"top_k": -1}, "input 'top_k': -1 given, must be at least 0"),
        ({"repetition_penalty": 0.0}, "input 'repetition_penalty': 0 given, must be above 0"),
        ({"min_tokens": 9}, "input 'min_tokens': 9 given, must lie in 0..4"),
        ({"drafter": "magic"}, "input 'drafter': 'magic' given, this deployment has draft_model"),
        ({"seed": 1, "random_seed": 2}, "inputs 'seed' and 'random_seed' differ"),
        ({"draft_acceptance_threshold": 0.5}, "input 'draft_acceptance_threshold' needs"),
        ({"embedding_bias_words": ["a"]}, "input 'embedding_bias_weights': 0 weights for 1"),
        ({"lora_task_id": 3}, "input 'lora_task_id' is not supported"),
        (
            {"guided_decoding_guide": "x"},
            "'guided_decoding_guide' needs 'guided_decoding_guide_type'",
        ),
        ({"guided_decoding_guide_type": "xml"}, "'xml' given, must be json, json_schema, regex"),
        ({"guided_decoding_guide_type": "regex"}, "input 'guided_decoding_guide' is missing"),
        ({"max_tokens": [4, 4]}, "max_tokens"),
        ({"end_id": 10**6}, "input 'end_id': 1000000 given, must lie in -1.."),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_a_bad_value_is_named(server, model, values, message):
    text = refusal(server, model, **{"prompts": "x", "max_tokens": 4, **values})
    assert "\n" not in text
    assert "Traceback" not in text
    assert re.search(message, text), text


@pytest.mark.parametrize("model", ["bls", "ensemble"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stop", "input 'stop': this model has no requests of its own to stop; send it to"),
        ("stream", "input 'stream': this model answers once; send the request to"),
    ],
)
def test_what_only_the_loops_entry_takes_is_refused_with_its_name(server, model, name, message):
    given = {"prompts": "x", "max_tokens": 4}
    text = refusal(server, model, **given, **{name: True})
    assert text.startswith(message)
    assert "'bls_stream'" in text
    assert ask_one(server, model, "x", max_tokens=2, **{name: False}).finish_reason == "length"


def test_a_missing_input_is_named(server):
    with client.InferenceServerClient(server.grpc_url) as connection:
        for made, name in (
            ([tensor("max_tokens", 4)], "text_input"),
            ([tensor("text_input", "x")], "max_tokens"),
        ):
            with pytest.raises(InferenceServerException, match=name):
                connection.infer("bls", made)


def test_a_wrong_type_is_named(server):
    wrong = client.InferInput("max_tokens", [1, 1], "FP32")
    wrong.set_data_from_numpy(np.ones((1, 1), np.float32))
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException, match="max_tokens"),
    ):
        connection.infer("bls", [tensor("text_input", "x"), wrong])


def test_both_text_and_ids_are_refused(server):
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException, match="'text_input' and 'input_ids' are both"),
    ):
        connection.infer("bls", [*inputs("x", max_tokens=4), tensor("input_ids", [[1, 2]])])


def test_ids_outside_the_vocabulary_are_refused(server):
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException, match="input 'input_ids': ids must lie in 0"),
    ):
        connection.infer("bls", [tensor("max_tokens", 4), tensor("input_ids", [[1, 10**6]])])


def post(server, model, body):
    """The answer of `generate`, or the error it gives."""
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{model}/generate", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


@pytest.mark.parametrize("model", ["bls", "bls_stream"])
@pytest.mark.parametrize("key", ["id", "max_token"])
def test_what_is_not_utf_8_beside_the_inputs_is_named(server, model, key):
    body = b'{"text_input": "x", "max_tokens": 3, "%s": "\xff"}' % key.encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server.http_url}/v2/models/{model}/generate", body)
    message = "the request's id or parameters are not UTF-8; encode them so"
    assert json.loads(refused.value.read()) == {"error": message}


def test_a_misspelt_input_of_generate_does_not_vanish(server):
    body = {"text_input": "x", "max_tokens": 4, "temprature": 0.5}
    for model in ("bls", "bls_stream"):
        error = post(server, model, body)["error"]
        assert "unknown input 'temprature'; did you mean 'temperature'?" in error


def test_generate_takes_scalars_and_lists(server):
    one = post(server, "bls", {"text_input": "import ", "max_tokens": 6})
    same = post(server, "bls", {"text_input": ["import "], "max_tokens": [6]})
    assert one["text_output"] == same["text_output"]


def test_empty_stop_and_bad_words_are_ignored(server):
    plain = ask_one(server, "bls", "import ", max_tokens=8)
    with_empty = ask_one(server, "bls", "import ", max_tokens=8, stop_words=[""], bad_words=[""])
    assert with_empty.text == plain.text
