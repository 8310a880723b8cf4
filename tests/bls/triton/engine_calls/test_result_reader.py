"""Answers are read from the tensors in an engine's response."""

import numpy as np
import pytest
import triton_python_backend_utils as triton
from scripted import SETTINGS, ids

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import Branching, EngineCall
from tandem.bls.triton.engine_tensors import read_result
from tandem.contract import engine as tensors


def test_each_branch_has_its_own_tokens_and_rows_of_logits():
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
    assert [b.logits_row for b in branches] == [0, 2, 3]


def test_negative_ids_are_an_error_of_the_engine():
    outputs = {tensors.OUTPUT_IDS: ids(3, -1), tensors.SEQUENCE_LENGTH: np.int32([[2]])}
    call = EngineCall("target", ids(), 2, seed=0)
    with pytest.raises(
        EngineCallError, match="model 'target' failed: its response has negative token ids"
    ):
        read_result(triton.response_of(outputs), call, 1.0, SETTINGS.target)
