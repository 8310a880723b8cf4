"""Input tensors are decoded to requests, and responses are encoded as output tensors."""

from __future__ import annotations

import numpy as np
import pytest
from model_configs import model_config

from tandem.contract import engine as tensors
from tandem.contract.errors import prefix_code, split_code
from tandem.engines.decoding import decode, reject
from tandem.engines.encoding import Sent, encode
from tandem.engines.engine import (
    Branches,
    CallUsage,
    EngineRequest,
    EngineResponse,
    LikeliestTokens,
)
from tandem.engines.errors import RequestError, UnsupportedError
from tandem.engines.kinds import excludes_input
from tandem.sampling.params import NUMBERS, SamplingNumbers

NUMPY = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "FP16": np.float16}
NUMPY |= {"BOOL": np.bool_, "UINT64": np.uint64, "UINT8": np.uint8, "STRING": np.object_}


def arrays(**given) -> dict[str, np.ndarray]:
    """Return arrays as Triton passes them, with a batch dimension: a scalar has shape (1,)."""
    given = {"input_ids": [3, 4, 5], "input_lengths": 3, "request_output_len": 7, **given}
    declared = {str(tensor): tensor for tensor in tensors.INPUTS}
    return {
        name: np.array([value], NUMPY[declared[name].dtype])
        for name, value in given.items()
        if value is not None
    }


def request(**given) -> EngineRequest:
    return decode(arrays(**given), "id", 5)


def test_tensors_of_a_call_for_branches_are_decoded():
    call = request(
        draft_input_ids=[8, 9],
        branch_counts=[3, 0, 1],
        branch_output_len=[4, 5, 6],
        min_tokens=2,
    )
    assert call.branches
    assert call.branch_counts.tolist() == [3, 0, 1]
    plain = call.plain_call(2)
    assert not plain.branches
    assert plain.max_new_tokens == 6
    assert plain.sampling.min_tokens == 0
    assert call.plain_call(0).sampling.min_tokens == 1
    assert not request().branches


def test_branches_have_a_batch_dimension():
    outcomes, ids = np.array([[0, 7], [2, 8]], np.int32), np.array([[4, 5], [6, 0]], np.int32)
    branches = Branches(outcomes, ids, np.array([2, 1], np.int32))
    wanted = ["branch_outcomes", "branch_ids", "branch_lengths", "output_ids"]
    answer = encode(request(), EngineResponse(branches=branches), wanted, Sent())
    assert {name: array.shape for name, array in answer.items()} == {
        "branch_outcomes": (1, 2, 2),
        "branch_ids": (1, 2, 2),
        "branch_lengths": (1, 2),
        "output_ids": (1, 1, 0),
    }
    plain = encode(request(), EngineResponse(tokens=(3,)), wanted, Sent())
    assert list(plain) == ["output_ids"]


def test_all_sampling_inputs_are_decoded():
    call = request(
        draft_input_ids=[8, 9],
        draft_logits=[[0.5, 1.0], [2.0, 3.0]],
        draft_acceptance_threshold=0.5,
        end_id=2,
        temperature=0.5,
        runtime_top_k=40,
        runtime_top_p=0.5,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        min_tokens=2,
        seed=2**64 - 1,
        embedding_bias=[0.0, 1.0],
        draft_stop_probability=0.25,
        streaming=True,
        exclude_input_in_output=False,
    )
    sampling = call.sampling
    assert call.draft_ids.tolist() == [8, 9]
    assert call.draft_logits.shape == (2, 2)
    assert (call.draft_acceptance_threshold, call.end_id) == (0.5, 2)
    assert (sampling.temperature, sampling.top_k) == (0.5, 40)
    assert (sampling.top_p, sampling.min_p) == (0.5, 0.125)
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.5, 0.25)
    assert (sampling.frequency_penalty, sampling.min_tokens) == (-0.5, 2)
    assert sampling.seed == 2**64 - 1
    assert sampling.embedding_bias.tolist() == [0.0, 1.0]
    assert call.draft_stop_probability == 0.25
    assert call.streaming
    assert not call.exclude_input


@pytest.mark.parametrize(
    ("given", "is_greedy"),
    [
        ({}, True),
        ({"runtime_top_k": 0, "runtime_top_p": 0.0, "min_p": 0.0}, True),
        ({"runtime_top_k": 1, "temperature": 1.0}, True),
        ({"temperature": 0.0, "runtime_top_p": 0.9}, True),
        ({"repetition_penalty": 1.5}, True),
        ({"temperature": 1.0}, False),
        ({"runtime_top_p": 1.0}, False),
        ({"runtime_top_k": 5}, False),
        ({"min_p": 0.5}, False),
    ],
)
def test_greedy_sampling_options_are_recognized(given, is_greedy):
    assert request(**given).sampling.greedy is is_greedy


@pytest.mark.parametrize("draws", [{}, {"temperature": 0.5, "min_p": 0.25}, {"top_k": 1}])
@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.5, "presence_penalty": -0.5}])
def test_sampling_options_sent_by_the_loop_are_decoded_unchanged(draws, penalties):
    numbers = SamplingNumbers(**draws, **penalties)
    sampling = request(**numbers.engine_inputs()).sampling
    assert {name: getattr(sampling, name) for name in NUMBERS} == vars(numbers)


def test_word_lists_are_decoded_from_ids_and_end_offsets():
    call = request(stop_words_list=[[7, 8, 9, 0], [2, 3, -1, -1]], bad_words_list=[[4, 0], [1, -1]])
    ends = [call.stop_words.first_end([], text) for text in ([7, 8], [9], [7, 9], [8])]
    assert ends == [1, 0, 1, None]
    assert call.sampling.bad_words.singles.tolist() == [4]
    assert not request(stop_words_list=[[0], [-1]]).stop_words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_ids": None}, "input_ids is missing or empty"),
        ({"input_lengths": 2}, "input_lengths must be 3, the length of input_ids; got 2"),
        ({"request_output_len": None}, "request_output_len is missing"),
        ({"request_output_len": 0}, "request_output_len must be at least 1; got 0"),
        ({"temperature": -0.5}, "temperature must be at least 0; got -0.5"),
        ({"temperature": np.nan}, "temperature must be a finite number; got nan"),
        ({"runtime_top_p": 1.5}, "runtime_top_p must be between 0 and 1; got 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be .*; got 0"),
        ({"presence_penalty": np.inf}, "presence_penalty must be a finite number; got inf"),
        (
            {"draft_acceptance_threshold": 2.0},
            "draft_acceptance_threshold must be between 0 and 1; got 2",
        ),
        ({"min_tokens": -1}, "min_tokens must be .*; got -1"),
        ({"beam_width": 2}, "beam_width must be 1; got 2"),
        ({"num_return_sequences": 3}, "num_return_sequences must be 1; got 3"),
        ({"runtime_top_p_decay": 0.5}, "runtime_top_p_decay must be 1.0; got 0.5"),
        (
            {"input_ids": [[1, 2], [3, 4]]},
            r"input_ids must have 2 dimensions.*; got shape \[1, 2, 2\]",
        ),
        ({"temperature": [0.5, 0.5]}, r"temperature must have one value; got shape \[1, 2\]"),
        ({"stop_words_list": [[1], [2]]}, "stop_words_list must have ends"),
        (
            {"token_masks": [[[1]]]},
            r"token_masks must have 3 dimensions.*; got shape \[1, 1, 1, 1\]",
        ),
    ],
)
def test_errors_name_the_invalid_input(given, message):
    with pytest.raises(RequestError, match=message):
        request(**given)


def test_an_empty_input_is_ignored():
    call = request(
        embedding_bias=[], draft_input_ids=[], bad_words_list=[[], []], stop_words_list=[[], []]
    )
    assert call.sampling.embedding_bias is None
    assert len(call.draft_ids) == 0
    assert not call.stop_words
    assert not request(prompt_table_extra_ids=[]).sampling.bad_words


@pytest.mark.parametrize(
    "given",
    [
        {"decoder_input_ids": [9], "pad_id": 9},
        {"decoder_input_ids": [0]},
        {"decoder_input_ids": [0], "pad_id": 9},
        {"prompt_table_extra_ids": [0, 0, 0], "pad_id": 9},
    ],
)
def test_padding_values_of_unsupported_inputs_are_ignored(given):
    assert request(**given).input_ids.tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    "given",
    [
        {"decoder_input_ids": [8], "pad_id": 9},
        {"decoder_input_ids": [9]},
        {"decoder_input_ids": [9, 8], "pad_id": 9},
        {"prompt_table_extra_ids": [0, 3, 0]},
    ],
)
def test_values_in_an_unsupported_input_are_rejected(given):
    with pytest.raises(UnsupportedError, match="_ids isn't supported by this engine"):
        request(**given)


def test_a_long_invalid_word_list_is_rejected_with_a_short_line():
    table = np.zeros((2, 100_000), np.int32)
    table[1, :2] = 2, 1
    with pytest.raises(RequestError) as error:
        request(bad_words_list=table)
    assert str(error.value) == "bad_words_list must have ends in ascending order, up to 100000"


def test_nvidias_parameter_sets_the_default_of_exclude_input_in_output():
    assert excludes_input({})
    assert not excludes_input(model_config({"exclude_input_in_output": "false"}))
    assert excludes_input(model_config({"exclude_input_in_output": "true"}))


def test_a_batch_is_rejected():
    batch = arrays() | {"input_ids": np.ones((2, 3), np.int32)}
    with pytest.raises(RequestError, match="input_ids must have a batch size of 1; got 2"):
        decode(batch, "", 0)


@pytest.mark.parametrize("tensor", tensors.INPUTS, ids=str)
def test_every_declared_input_is_either_supported_or_rejected_by_name(tensor):
    shape = (1,) if tensor.scalar else (1, *(2 if dim == -1 else dim for dim in tensor.dims))
    value = np.ones(shape, NUMPY[tensor.dtype])
    if tensor.dtype == "STRING":
        value = np.full(shape, b"x", object)
    try:
        decode(arrays(input_lengths=None) | {str(tensor): value}, "", 0)
    except RequestError as error:
        assert str(error).startswith(str(tensor))  # noqa: PT017


def test_a_response_is_encoded_as_tensors():
    call = request(
        return_perf_metrics=True, return_num_input_tokens=True, return_num_output_tokens=True
    )
    answer = EngineResponse(
        tokens=(8, 9),
        log_probs=np.array([-0.5, -1.5], np.float32),
        context_logits=np.zeros((3, 11), np.float32),
        generation_logits=np.zeros((2, 11), np.float32),
        usage=CallUsage(reused_blocks=3, new_blocks=2, draft_tokens=4, accepted_tokens=1),
    )
    got = encode(call, answer, [str(tensor) for tensor in tensors.NVIDIA_OUTPUTS], Sent())
    for tensor in tensors.NVIDIA_OUTPUTS:
        if tensor in got:
            assert got[tensor].dtype == NUMPY[tensor.dtype], tensor
            assert got[tensor].ndim == 1 + len(tensor.dims), tensor
    assert set(map(str, tensors.NVIDIA_OUTPUTS)) - set(got) == {"context_phase_params"}
    assert got["output_ids"].tolist() == [[[8, 9]]]
    assert got["sequence_length"].tolist() == [[2]]
    assert got["cum_log_probs"].tolist() == [[-2.0]]
    assert got["output_log_probs"].tolist() == [[[-0.5, -1.5]]]
    assert got["generation_logits"].shape == (1, 1, 2, 11)
    assert got["kv_cache_alloc_total_blocks"].tolist() == [[5]]
    assert got["acceptance_rate"].tolist() == [[0.25]]
    assert (got["num_input_tokens"], got["num_output_tokens"]) == (3, 2)


def test_top_log_probs_and_prompt_log_probs_are_encoded_as_tensors():
    top = LikeliestTokens(np.int32([[8, 7], [9, 7]]), np.float32([[-0.5, -1], [-1.5, -2]]))
    answer = EngineResponse(
        tokens=(8, 9),
        log_probs=np.float32([-0.5, -1.5]),
        top_log_probs=top,
        prompt_log_probs=np.float32([0, -1]),
        prompt_top_log_probs=top,
    )
    got = encode(request(), answer, list(map(str, tensors.OUTPUTS)), Sent())
    assert got["output_top_ids"].tolist() == [[[[8, 7], [9, 7]]]]
    assert got["output_top_log_probs"].tolist() == [[[[-0.5, -1], [-1.5, -2]]]]
    assert got["prompt_log_probs"].tolist() == [[[0, -1]]]
    assert got["prompt_top_ids"].shape == got["prompt_top_log_probs"].shape == (1, 1, 2, 2)


def test_too_many_alternatives_are_rejected():
    with pytest.raises(RequestError, match="num_top_log_probs must be between 0 and 20; got 21"):
        request(num_top_log_probs=21)


def test_the_context_is_prepended_to_the_first_response_if_not_excluded():
    call, sent = request(exclude_input_in_output=False), Sent()
    first = encode(call, EngineResponse(tokens=(8,)), tensors.NVIDIA_OUTPUTS, sent)
    assert first["output_ids"].tolist() == [[[3, 4, 5, 8]]]
    assert first["sequence_length"].tolist() == [[4]]
    later = encode(call, EngineResponse(tokens=(9,)), tensors.NVIDIA_OUTPUTS, sent)
    assert later["output_ids"].tolist() == [[[9]]]


def test_totals_include_earlier_responses():
    call, sent = request(return_num_output_tokens=True), Sent()
    answer = EngineResponse(tokens=(8, 9), log_probs=np.float32([-0.5, -1.5]))
    for count in (1, 2):
        got = encode(call, answer, tensors.NVIDIA_OUTPUTS, sent)
        assert got["num_output_tokens"] == 2 * count
        assert got["cum_log_probs"].tolist() == [[-2.0 * count]]


def test_an_input_that_is_rejected_under_a_condition_is_still_named():
    with pytest.raises(UnsupportedError) as rejected:
        reject({"end_id": False, "token_masks for several tokens": True}, "here")
    error = rejected.value
    sent = split_code(prefix_code(error.code, str(error), error.field))
    assert sent == (
        "UNSUPPORTED",
        "token_masks",
        "token_masks for several tokens isn't supported here",
    )
