"""The target receives only the drafts and logits that its engine verifies exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import SETTINGS, VOCAB, ids, with_engines

from tandem.bls import ports
from tandem.bls.lossless import (
    draft_gets_bans,
    draft_sampling,
    make_lossless,
    verification_logits,
)
from tandem.bls.request import GREEDY, Request, Sampling

# The capabilities of NVIDIA's C++ backend
RAW = with_engines(
    SETTINGS,
    target={"samples_exactly": False, "log_probs_with_drafts": False},
    draft={"samples_exactly": False},
)
SAMPLED = Sampling(temperature=0.7, top_k=3)
PLAIN = Sampling(temperature=1.0, top_k=0)
TOP_P = Sampling(temperature=1.0, top_k=0, top_p=0.9)
TOKENS = ids(2, 5)
LOGITS = np.arange(2 * VOCAB, dtype=np.float32).reshape(1, 2, VOCAB) % 5


def request_of(drafter="draft_model", **changes):
    plain = Request(
        prompt_ids=ids(0, 1),
        max_tokens=20,
        drafter=drafter,
        draft_len=3,
        prompt_lookup_num_tokens=3,
        max_draft_len=16,
        sampling=SAMPLED,
        use_draft_logits=drafter != "prompt_lookup",
    )
    return replace(plain, **changes)


def test_logits_are_sent_raw_if_the_target_warps_them():
    draft = ports.Draft(TOKENS)
    found = verification_logits(draft, LOGITS, request_of(), SETTINGS)
    assert np.shares_memory(found, LOGITS)
    assert found.shape == LOGITS.shape
    assert verification_logits(draft, None, request_of(use_draft_logits=False), SETTINGS) is None


@pytest.mark.parametrize(("dtype", "expected"), [("FP32", np.float32), ("FP16", np.float16)])
@pytest.mark.parametrize("width", [VOCAB - 2, VOCAB, VOCAB + 3])
def test_logits_are_warped_for_a_target_that_does_not(width, dtype, expected):
    settings = with_engines(RAW, target={"vocab_size": width, "logits_dtype": dtype})
    found = verification_logits(ports.Draft(TOKENS), LOGITS, request_of(), settings)
    assert (found.shape, found.dtype) == ((1, 2, width), expected)
    assert found.flags.c_contiguous
    whole = LOGITS[0, :, :width] / 0.7
    rows = np.exp(whole) / np.exp(whole).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.exp(found[0, :, :VOCAB].astype(float)), rows, rtol=1e-2)


def test_complete_draft_logits_are_warped_by_all_sampling_options():
    settings = with_engines(RAW, draft={"samples_exactly": True})
    found = verification_logits(ports.Draft(TOKENS), LOGITS, request_of(sampling=PLAIN), settings)
    assert np.isfinite(found).all()
    found = verification_logits(ports.Draft(TOKENS), LOGITS, request_of(), settings)
    assert np.isinf(found).any()


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid"])
def test_drafts_without_logits_get_probability_1_for_a_target_that_resamples(drafter):
    request = request_of(drafter, use_draft_logits=False)
    found = verification_logits(ports.Draft(TOKENS), None, request, RAW)
    assert np.exp(found).sum() == 2
    assert found[0, [0, 1], TOKENS].tolist() == [0, 0]
    greedy = request_of(drafter, sampling=GREEDY, use_draft_logits=False)
    assert verification_logits(ports.Draft(TOKENS), None, greedy, RAW) is None


def test_logits_of_cut_draft_tokens_are_dropped():
    for settings in (SETTINGS, RAW):
        found = verification_logits(ports.Draft(TOKENS[:1]), LOGITS, request_of(), settings)
        assert found.shape == (1, 1, VOCAB)


def test_logits_too_small_for_half_precision_become_minus_infinity():
    settings = with_engines(RAW, target={"logits_dtype": "FP16"})
    request = request_of(sampling=Sampling(temperature=1e-5, top_k=0))
    found = verification_logits(ports.Draft(TOKENS), LOGITS, request, settings)
    assert found.max() <= 0
    assert np.isinf(found).any()


def test_incomplete_draft_logits_limit_draft_sampling_to_the_temperature():
    penalised = replace(SAMPLED, top_p=0.5, repetition_penalty=1.3, bad_words=ids(1))
    request = request_of(sampling=penalised)
    assert draft_sampling(request, SETTINGS) is penalised
    assert draft_sampling(request, RAW) == Sampling(temperature=0.7, top_k=0)
    assert draft_gets_bans(request, SETTINGS)
    assert not draft_gets_bans(request, RAW)
    by_ids = replace(request, use_draft_logits=False)
    assert draft_sampling(by_ids, RAW) is penalised
    assert draft_gets_bans(by_ids, RAW)


@pytest.mark.parametrize("drafter", ["draft_model", "prompt_lookup", "hybrid"])
@pytest.mark.parametrize(
    ("settings", "sampling", "drafts"),
    [
        (SETTINGS, SAMPLED, True),
        (SETTINGS, TOP_P, True),
        (RAW, GREEDY, True),
        (RAW, SAMPLED, True),
        (RAW, PLAIN, True),
        (RAW, TOP_P, False),
    ],
)
def test_drafters_that_would_change_the_distribution_are_turned_off(
    drafter, settings, sampling, drafts
):
    found = make_lossless(request_of(drafter, sampling=sampling), settings)
    assert found.drafter == (drafter if drafts else "none")
    if not drafts:
        assert (found.use_draft_logits, found.longest_draft) == (False, 0)


def test_an_acceptance_threshold_allows_inexact_drafts():
    request = request_of(sampling=TOP_P, draft_acceptance_threshold=0.4)
    assert make_lossless(request, RAW) is request


def test_greedy_requests_need_no_draft_logits():
    request = request_of(sampling=GREEDY)
    assert not make_lossless(request, SETTINGS).use_draft_logits
    lossy = replace(request, draft_acceptance_threshold=0.5)
    assert make_lossless(lossy, SETTINGS) is lossy


@pytest.mark.parametrize("wanted", ["return_log_probs", "return_context_logits"])
def test_drafting_is_off_if_verification_cannot_return_requested_outputs(wanted):
    request = request_of(sampling=GREEDY, **{wanted: True})
    assert make_lossless(request, RAW).drafter == "none"
    only_logits = wanted == "return_context_logits"
    assert make_lossless(request, SETTINGS).drafter == ("none" if only_logits else "draft_model")
    itself = replace(request, drafter="engine")
    assert make_lossless(itself, RAW) is itself
