"""The target rejects invalid draft logits and accepts padded draft logits."""

from __future__ import annotations

import re

import numpy as np
import pytest
from distributions import Warp, fits
from engine_harness import VOCAB, Harness, emitted, prompt
from error_lines import error_line
from scale import first_of

from tandem.engines.decoding import decode
from tandem.engines.engine import EngineRequest, SamplingParams
from tandem.engines.errors import RequestError
from tandem.engines.noise import draw
from tandem.engines.stepping.sampling import CallSampler
from tandem.engines.stepping.verification import Proposal, verify_probabilities
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import probabilities

DRAWS = 1_500
SMALL = 12


def submit(harness: Harness, **tensors) -> None:
    """Submit a request that is decoded from tensors, as in Triton."""
    arrays = {
        "input_ids": np.array([prompt(1, 5)], np.int32),
        "request_output_len": np.array([3], np.int32),
        "draft_input_ids": np.array([[4, 5]], np.int32),
    } | tensors
    harness.engine.submit(decode(arrays, "id", 0), lambda answer: None)


def logits(*shape: int) -> np.ndarray:
    return np.zeros((1, *shape), np.float32)


THRESHOLD = np.array([0.5], np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"draft_acceptance_threshold": THRESHOLD}, "draft_logits is missing; draft_acceptance"),
        ({"draft_logits": logits(2, VOCAB + 1)}, r"must have shape \[2, 131\] .*; got \[2, 132\]"),
        ({"draft_logits": logits(2, VOCAB - 1)}, r"must have shape \[2, 131\] .*; got \[2, 130\]"),
        ({"draft_logits": logits(3, VOCAB)}, r"must have shape \[2, 131\] .*; got \[3, 131\]"),
        (
            {"draft_logits": logits(1, 2, VOCAB)},
            r"draft_logits must have 3 dimensions.*; got shape \[1, 1, 2, 131\]",
        ),
        (
            {"draft_logits": logits(2, VOCAB), "draft_input_ids": np.zeros((1, 0), np.int32)},
            r"draft_logits must have shape \[0, 131\] .*; got \[2, 131\]",
        ),
    ],
)
def test_invalid_draft_logits_are_rejected_with_one_line(llama, tensors, message):
    assert re.search(message, error_line(RequestError, submit, llama, **tensors))


def test_a_threshold_without_drafts_requires_no_logits(llama):
    submit(
        llama,
        draft_acceptance_threshold=THRESHOLD,
        draft_input_ids=np.zeros((1, 0), np.int32),
    )


@pytest.mark.parametrize("width", [VOCAB - 3, VOCAB + 5])
def test_draft_logits_must_have_a_configured_vocab_size(make_harness, width):
    harness = make_harness(draft_vocab_size=width)
    for known in (width, VOCAB):
        submit(harness, draft_logits=logits(2, known))
    message = rf"must have shape \[2, 131\] or \[2, {width}\] .*; got \[2, 7\]"
    with pytest.raises(RequestError, match=message):
        submit(harness, draft_logits=logits(2, 7))


@pytest.mark.parametrize("width", [SMALL - 2, SMALL + 4])
@pytest.mark.parametrize(
    "warp", first_of(Warp(0.8, top_p=0.8), Warp(1.0), Warp(1.2, top_k=5)), ids=str
)
def test_likely_padding_ids_do_not_change_the_targets_distribution(width, warp):
    """The loop never sends padding ids to the target, even if the draft finds them likely."""
    random = np.random.default_rng(3)
    target = random.normal(0, 1, (2, SMALL)).astype(np.float32)
    draft = random.normal(0, 1, (1, width)).astype(np.float32)
    shared = warp.of(draft)[0, :SMALL]
    proposals = random.choice(len(shared), DRAWS, p=shared / shared.sum())
    counts = np.zeros(SMALL)
    for seed, proposal in enumerate(proposals.tolist()):
        request = EngineRequest(
            "r",
            np.array([1, 2], np.int32),
            2,
            draft_ids=np.array([proposal], np.int32),
            draft_logits=draft,
            sampling=SamplingParams(**vars(warp), seed=seed),
        )
        sampler = CallSampler(request, SMALL)
        counts[emitted(sampler, target, [1, 2, proposal], [proposal])[0]] += 1
    assert fits(counts, warp.of(target)[0])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_non_finite_draft_logits_reject_only_the_draft(broken):
    p = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]], np.float32)
    for numbers in (SamplingNumbers(), SamplingNumbers(temperature=0.5, top_k=2, top_p=0.9)):
        q = probabilities(np.array([broken, 1.0, 1.0], np.float32), numbers)
        for seed in range(20):
            tokens = verify_probabilities(iter(p), Proposal([2], [q], [0.5], [seed, 99]))
            assert tokens == [draw(p[0], seed)]
