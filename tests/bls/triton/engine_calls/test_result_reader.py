"""Answers are read from the tensors in an engine's response."""

import numpy as np
import pytest
import triton_python_backend_utils as triton
from scripted import SETTINGS, ids

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import Branching, EngineCall
from tandem.bls.triton.engine_tensors import read_result
from tandem.contract import engine as tensors


def test_each_branch_has_its_own_tokens():
    outputs = {
        tensors.OUTPUT_IDS: ids(),
        tensors.SEQUENCE_LENGTH: np.zeros((1, 1), np.int32),
        tensors.BRANCH_OUTCOMES: np.array([[[0, 5], [0, 6], [1, 7]]], np.int32),
        tensors.BRANCH_IDS: np.array([[[1, 2], [3, 0], [4, 5]]], np.int32),
        tensors.BRANCH_LENGTHS: np.array([[2, 1, 2]], np.int32),
    }
    response = triton.InferenceResponse([triton.Tensor(*output) for output in outputs.items()])
    call = EngineCall("draft", ids(), 2, seed=0, branching=Branching((2, 1), (2, 2)))
    branches = read_result(response, call, 1.0, SETTINGS.draft).branches
    assert [(b.num_accepted, b.next_token) for b in branches] == [(0, 5), (0, 6), (1, 7)]
    assert [b.tokens.tolist() for b in branches] == [[1, 2], [3], [4, 5]]


BRANCH = {
    tensors.BRANCH_OUTCOMES: np.int32([[[0, 5]]]),
    tensors.BRANCH_IDS: np.int32([[[1]]]),
    tensors.BRANCH_LENGTHS: np.int32([[1]]),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {tensors.OUTPUT_IDS: ids(3, -1)},
        {tensors.OUTPUT_IDS: ids(3, SETTINGS.draft.vocab_size)},
        {tensors.OUTPUT_IDS: np.float32([3, 1])},
        {tensors.SEQUENCE_LENGTH: np.int32([[1, 1]])},
        {tensors.SEQUENCE_LENGTH: np.array([[b"2"]], object)},
        {tensors.BRANCH_IDS: np.int32([[[SETTINGS.draft.vocab_size]]])},
        {tensors.BRANCH_IDS: np.int32([[[-1]]])},
        {tensors.BRANCH_OUTCOMES: np.int32([[[0, 5, 1]]])},
        {tensors.ARRIVAL_TIME_NS: np.int64([]), tensors.LAST_TOKEN_TIME_NS: np.int64([])},
    ],
)
def test_a_malformed_response_is_an_error_of_the_engine(wrong):
    outputs = {tensors.OUTPUT_IDS: ids(3, 1), tensors.SEQUENCE_LENGTH: np.int32([[2]]), **BRANCH}
    call = EngineCall("draft", ids(), 2, seed=0, branching=Branching((1,), (1,)))
    assert read_result(triton.response_of(outputs), call, 1.0, SETTINGS.draft).tokens.tolist()
    with pytest.raises(EngineCallError, match="model 'draft' failed: its response is malformed"):
        read_result(triton.response_of(outputs | wrong), call, 1.0, SETTINGS.draft)


def logits(rows):
    return {tensors.GENERATION_LOGITS: np.zeros((1, 1, rows, 5), np.float32)}


def test_logits_that_lack_a_draft_token_are_an_error_of_the_draft_engine():
    """The target would reject the draft, and with it the request."""
    outputs = {tensors.OUTPUT_IDS: ids(3, 1), tensors.SEQUENCE_LENGTH: np.int32([[2]])}
    call = EngineCall("draft", ids(), 2, seed=0)

    def read(rows):
        response = triton.response_of(outputs | logits(rows))
        return read_result(response, call, 1.0, SETTINGS.draft)

    assert read(2).draft_logits.shape()[-2] == 2
    assert read(3).draft_logits is not None
    with pytest.raises(EngineCallError, match="model 'draft' failed: its response is malformed"):
        read(1)
