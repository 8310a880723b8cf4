"""Third-party clients work: Tandem accepts their inputs and returns the outputs they need."""

import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as client
from entries import inputs, read, tensor

# Inputs that NVIDIA's end-to-end client for `tensorrt_llm_bls` sends with every request.
NVIDIA = {
    "beam_width": 1,
    "temperature": 1.0,
    "num_return_sequences": 1,
    "num_draft_tokens": 4,
    "use_draft_logits": False,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_log_probs": True,
    "return_context_logits": False,
    "return_generation_logits": False,
    "return_perf_metrics": True,
    "exclude_input_in_output": True,
}
PERFORMANCE = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
)
# Inputs that LangChain's and LlamaIndex's clients send with every request.
FRAMEWORK = {
    "top_k": 1,
    "top_p": 0.0,
    "temperature": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "random_seed": 0,
    "beam_width": 1,
    "stream": False,
}


@pytest.fixture
def connection(server):
    with client.InferenceServerClient(server.grpc_url) as opened:
        yield opened


def test_nvidias_client_receives_all_requested_outputs(connection):
    wanted = ("text_output", "cum_log_probs", "output_log_probs", *PERFORMANCE)
    outputs = [client.InferRequestedOutput(name) for name in wanted]
    made = inputs(["import os", "def f("], max_tokens=12, stop_words=[""], bad_words=[""], **NVIDIA)
    result = connection.infer("bls", made, outputs=outputs, request_id="1")
    values = {name: result.as_numpy(name) for name in wanted}
    assert all(value is not None and len(value) == 2 for value in values.values())
    assert values["text_output"].shape == (2,)
    assert values["output_log_probs"].shape == (2, 1, 12)
    times = [values[name] for name in PERFORMANCE if name.endswith("_ns")]
    assert all((np.diff(np.stack(times), axis=0) >= 0).flatten())


def test_temperature_1_without_other_sampling_options_stays_greedy(connection):
    plain = read(connection.infer("bls", inputs("import os", max_tokens=12)))
    nvidia = read(connection.infer("bls", inputs("import os", max_tokens=12, **NVIDIA)))
    framework = read(connection.infer("bls", inputs("import os", max_tokens=12, **FRAMEWORK)))
    assert plain[0].text == nvidia[0].text == framework[0].text


def test_large_outputs_are_sent_only_on_request(connection):
    result = connection.infer("bls", inputs("import os", max_tokens=4))
    names = {output.name for output in result.get_response().outputs}
    assert {"text_output", "finish_reason", "acceptance_rate", "num_rounds"} <= names
    assert not names & {"output_ids", "context_logits", "generation_logits", "cum_log_probs"}


def test_generic_clients_get_draft_and_token_counts(connection):
    made = inputs("import os", max_tokens=24)
    for flag in ("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens"):
        made.append(tensor(flag, True))
    result = connection.infer("bls", made)
    assert result.as_numpy("num_output_tokens").item() == 24
    assert result.as_numpy("num_input_tokens").item() > 0
    assert result.as_numpy("total_draft_tokens").item() > 0


def test_joined_chunks_of_generate_stream_equal_the_answer(server):
    body = {"text_input": "def main():", "max_tokens": 24}
    whole = post(server, "bls/generate", body)
    (answer,) = [json.loads(line) for line in whole]
    events = post(server, "bls_stream/generate_stream", {**body, "stream": True})
    chunks = [json.loads(e.removeprefix("data: ")) for e in events if e.startswith("data: ")]
    assert len(chunks) > 1
    assert "".join(chunk["text_output"] for chunk in chunks) == answer["text_output"]
    assert chunks[-1]["finish_reason"] == "length"


def test_context_and_generation_logits_are_returned_on_request(connection, embedded):
    names = ("text_output", "context_logits", "generation_logits", "num_input_tokens")
    outputs = [client.InferRequestedOutput(name) for name in names]
    flags = {"return_context_logits": True, "return_generation_logits": True}
    made = inputs("import os", max_tokens=6, return_num_input_tokens=True, **flags)
    result = connection.infer("bls", made, outputs=outputs)
    width = embedded.target.vocab_size
    length = result.as_numpy("num_input_tokens").item()
    assert result.as_numpy("context_logits").shape == (1, length, width)
    assert result.as_numpy("generation_logits").shape == (1, 1, 6, width)


def test_logits_of_banned_tokens_are_valid_json(server):
    body = {"text_input": "x", "max_tokens": 2, "min_tokens": 2, "return_generation_logits": True}
    [line] = post(server, "bls/generate", body)
    answer = json.loads(line, parse_constant=pytest.fail)
    assert min(answer["generation_logits"]) < -1e38  # the end of sequence


def test_an_empty_answer_does_not_affect_logits_of_other_prompts(connection):
    prompts = ["import os", "def main():"]
    asked = client.InferRequestedOutput("output_ids")
    alone = connection.infer("ensemble", inputs(prompts[1], max_tokens=1), outputs=[asked])
    end = int(alone.as_numpy("output_ids").item())
    made = inputs(prompts, max_tokens=6, return_generation_logits=True)
    made.append(tensor("end_id", [[-1], [end]]))
    outputs = [client.InferRequestedOutput(name) for name in ("generation_logits", "text_output")]
    result = connection.infer("ensemble", made, outputs=outputs)
    assert result.as_numpy("text_output")[1] == b""
    logits = result.as_numpy("generation_logits")
    assert logits.shape[:3] == (2, 1, 6)
    assert logits[0].any(axis=-1).all()
    assert not logits[1].any()


def post(server, path, body):
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{path}", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request) as response:
        return [line for line in response.read().decode().splitlines() if line]
