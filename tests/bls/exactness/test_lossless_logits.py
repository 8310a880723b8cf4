"""Draft logits reach the target as exact probability distributions."""

from __future__ import annotations

import numpy as np
import pytest
from distributions import WARPS, Warp

from tandem.bls.lossless import warped_log_probs
from tandem.bls.request import Sampling

VOCAB = 40
_random = np.random.default_rng(11)
DRAFT = _random.normal(0, 1.5, VOCAB).astype(np.float32)
CUTS = [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 12, "top_p": 0.6, "min_p": 0.1}]


def sampling(warp):
    return Sampling(**vars(warp))


def probabilities(logits, warp, vocab_size=VOCAB):
    return np.exp(
        warped_log_probs(np.reshape(logits, (1, -1, len(logits))), sampling(warp), vocab_size)
    )[0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-45])
def test_the_lowest_temperatures_mean_greedy_decoding(temperature):
    found = probabilities(np.array([3.0, -7.0, 3.5, -np.inf], np.float32), Warp(temperature), 4)
    assert found[0].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_the_tokens_of_a_large_vocabulary_are_cut_exactly(temperature, cut):
    logits = _random.normal(0, 3, (1, 50, 5000)).astype(np.float32)
    warp = Warp(temperature, **cut)
    with np.errstate(divide="ignore"):
        expected = np.log(warp.of(logits[0]))
    found = warped_log_probs(logits, sampling(warp), 5000)
    assert found.dtype == np.float32
    assert (np.isinf(found[0]) == np.isinf(expected)).all()
    np.testing.assert_allclose(found[0], expected, atol=1e-4)


@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_warped_logits_have_the_exact_probabilities(warp):
    np.testing.assert_allclose(probabilities(DRAFT, warp)[0], warp.of(DRAFT), rtol=1e-4)


def test_half_precision_logits_are_warped_in_single_precision():
    half = DRAFT.astype(np.float16)
    found = probabilities(half, Warp(0.7))
    np.testing.assert_allclose(found[0], Warp(0.7).of(half.astype(np.float64)), rtol=1e-5)


def test_tokens_tied_at_the_top_k_boundary_are_kept():
    found = probabilities(np.array([1.0, 2.0, 2.0, 0.0]), Warp(1.0, top_k=1), 4)
    np.testing.assert_allclose(found[0], [0, 0.5, 0.5, 0])


def test_ids_missing_from_the_draft_have_probability_0():
    found = probabilities(DRAFT, Warp(1.0), VOCAB + 3)
    assert found.shape == (1, VOCAB + 3)
    assert (found[0, VOCAB:] == 0).all()
    np.testing.assert_allclose(found[0, :VOCAB], Warp(1.0).of(DRAFT), rtol=1e-5)


def test_the_probability_of_padding_ids_missing_from_the_target_is_redistributed():
    found = probabilities(DRAFT, Warp(0.7, top_k=30), VOCAB - 3)[0]
    kept = Warp(0.7, top_k=30).of(DRAFT)[: VOCAB - 3]
    np.testing.assert_allclose(found, kept / kept.sum(), rtol=1e-5)
