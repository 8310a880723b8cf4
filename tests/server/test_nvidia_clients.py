"""NVIDIA's speculative loops work with Tandem's `draft` and `target` models.

The loops in this file make the same calls with the same tensors, and end by the same rules, as
TensorRT-LLM's inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py and
all_models/inflight_batcher_llm/tensorrt_llm_bls. Both may expect the prompt in `output_ids`.
"""

import numpy as np
import pytest
from entries import ask_one, infer_input
from tritonclient import grpc

PROMPT = "def add(a, b):"
LENGTH = 40
NUM_DRAFT_TOKENS = 5
PREPROCESSED = {  # output of preprocessing that the BLS model forwards -> engine input
    "INPUT_ID": "input_ids",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}


@pytest.fixture
def client(emulated):
    """A client of engines whose answers include the prompt unless a call excludes it."""
    with grpc.InferenceServerClient(emulated.grpc_url) as connection:
        yield connection


def call(client, model, arrays):
    """Call a model without naming outputs, like NVIDIA's client."""
    inputs = [infer_input(name, array) for name, array in arrays.items()]
    return client.infer(model, inputs, request_id="1")


def one(value, kind=np.int32):
    return np.array([[value]], kind)


def preprocessed(client, **given):
    query = {"QUERY": np.array([[PROMPT.encode()]], object), "REQUEST_OUTPUT_LEN": one(LENGTH)}
    return call(client, "preprocessing", query | given)


def text_of(result):
    """Return the ids of an answer, including the prompt."""
    ids = result.as_numpy("output_ids")[0, 0]
    assert result.as_numpy("sequence_length").tolist() == [[len(ids)]]
    return ids


def is_over(drafted, before, ids, most, stop_words):
    """Return whether the client's loop ends. drafted: the last output ids of the draft engine."""
    ends = [np.array_equal(ids[-len(word) :], word) for word in stop_words]
    same_as_draft = drafted is not None and np.array_equal(drafted, ids)
    return len(ids) >= most or same_as_draft or np.array_equal(before, ids) or any(ends)


def generate(client, fixed, prompt, stop_words):
    """Draft and verify until the answer ends; return the answer's ids and the number of rounds."""
    ids, drafted, rounds = prompt, None, 0
    most = len(prompt) + LENGTH
    while True:
        common = fixed | {"input_ids": ids[None], "input_lengths": one(len(ids))}
        wanted = min(NUM_DRAFT_TOKENS, most - len(ids) - 1)
        verified = {"request_output_len": one(1)}
        if wanted > 0:
            drafted = text_of(call(client, "draft", common | {"request_output_len": one(wanted)}))
            draft = drafted[len(ids) :]
            verified = {
                "request_output_len": one(len(draft) + 1),
                "draft_input_ids": draft[None].astype(np.int32),
            }
        before, rounds = ids, rounds + 1
        ids = text_of(call(client, "target", common | verified))
        assert ids[: len(before)].tolist() == before.tolist()
        if is_over(drafted, before, ids, most, stop_words):
            return ids, rounds


@pytest.fixture
def expected(emulated):
    """The answer of the baseline."""
    return ask_one(emulated, "ensemble", PROMPT, max_tokens=LENGTH)


def test_nvidias_client_side_loop_gives_the_baseline_output(client, expected):
    response = preprocessed(client)
    prompt = response.as_numpy("INPUT_ID")[0]
    stop_words = response.as_numpy("STOP_WORDS_IDS")
    fixed = {
        "bad_words_list": response.as_numpy("BAD_WORDS_IDS"),
        "stop_words_list": stop_words,
        "beam_width": one(1),
        "temperature": one(0.0, np.float32),
        "end_id": response.as_numpy("OUT_END_ID"),
        "pad_id": response.as_numpy("OUT_PAD_ID"),
    }
    ids, rounds = generate(client, fixed, prompt, stop_words[0])
    assert ids[len(prompt) :].tolist() == expected.ids
    assert rounds < len(expected.ids)
    answer = {"TOKENS_BATCH": ids[None, None], "SEQUENCE_LENGTH": one(len(ids))}
    text = call(client, "postprocessing", answer).as_numpy("OUTPUT")
    assert text.reshape(-1)[0].decode().endswith(expected.text)


@pytest.mark.parametrize("given", [{}, {"PROMPT_TABLE_EXTRA_ID": one(7, np.uint64)}])
def test_nvidias_bls_model_gives_the_baseline_output(client, expected, given):
    """The BLS model forwards all outputs of preprocessing, even if they are empty or padding."""
    response = preprocessed(client, **given)
    fixed = {engine: response.as_numpy(name) for name, engine in PREPROCESSED.items()}
    assert fixed["embedding_bias"].size == 0
    prompt = fixed.pop("input_ids")[0]
    fixed |= {
        "runtime_top_k": one(1),
        "streaming": one(False, bool),
        "return_context_logits": one(False, bool),
        "return_generation_logits": one(False, bool),
    }
    ids, rounds = generate(client, fixed, prompt, fixed["stop_words_list"][0])
    assert ids[len(prompt) :].tolist() == expected.ids
    assert rounds < len(expected.ids)


def test_an_engines_config_says_that_output_includes_the_input(client):
    for model in ("draft", "target"):
        config = client.get_model_config(model).config
        assert config.parameters["exclude_input_in_output"].string_value == "false"
