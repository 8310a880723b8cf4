"""The target accepts right draft tokens and replaces the first wrong one."""

from __future__ import annotations

import numpy as np
import pytest
from engine_harness import VOCAB, prompt

from tandem.engines.engine import SamplingParams
from tandem.engines.noise import Purpose, exponentials, hash_key, uniform
from tandem.engines.stepping.verification import Proposal, verify_probabilities
from tandem.sampling.acceptance import accepts, verify_ids


def test_verification_emits_at_most_the_requested_number_of_tokens(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    assert llama.tokens(ids, 2, drafts=text[:4]) == text[:2]


def test_logits_mode_accepts_every_token_if_draft_and_target_agree(llama):
    ids = prompt(6, 10)
    warped = {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.3}
    proposal = llama.call(
        ids, 5, sampling=SamplingParams(**warped, seed=1), return_generation_logits=True
    )
    outcome = llama.call(
        ids,
        6,
        drafts=proposal.tokens,
        draft_logits=proposal.last.generation_logits,
        sampling=SamplingParams(**warped, seed=2),
    )
    assert outcome.tokens[:5] == proposal.tokens


def test_greedy_drafts_with_logits_must_match_the_most_likely_token(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    logits = np.zeros((4, VOCAB), np.float32)
    assert llama.tokens(ids, 5, drafts=text[:4], draft_logits=logits) == text[:5]


def test_a_rejected_draft_token_that_is_redrawn_ends_the_round(llama):
    cold = SamplingParams(temperature=1e-30, seed=3)  # p and q are 1 for the draft tokens
    ids = prompt(2, 6)
    text = llama.tokens(ids, 4)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[range(4), text] = 1
    asked = {"drafts": text, "draft_logits": logits, "draft_acceptance_threshold": 1.5}
    assert llama.tokens(ids, 5, sampling=cold, **asked) == text[:1]


def test_a_row_without_allowed_tokens_matters_only_if_it_is_reached(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 3)
    every, none = np.full(5, -1, np.int32), np.zeros(5, np.int32)
    asked = {"new": 3, "token_masks": np.stack((every, none, every))}
    wrong = [(text[0] + 1) % VOCAB, text[1]]
    assert llama.tokens(ids, drafts=wrong, **asked) == text[:1]
    failed = llama.start(ids, drafts=text[:2], **asked).wait()
    assert "together ban every token" in failed.error
    sampling = SamplingParams(temperature=1.0, seed=3)
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, text[0]] = 60  # more likely than in the target
    asked |= {"sampling": sampling, "draft_logits": logits, "draft_acceptance_threshold": 1.0}
    assert len(llama.tokens(ids, drafts=[text[0], 5], **asked)) == 1
    logits[0, text[0]] = -60
    failed = llama.start(ids, drafts=[text[0], 5], **asked).wait()
    assert "together ban every token" in failed.error


def some_probabilities(random, rows: int, zeros: float) -> np.ndarray:
    weights = random.exponential(size=(rows, 12)).astype(np.float32) ** 3
    weights[random.random((rows, 12)) < zeros] = 0
    weights[:, 3] += 1e-3
    return weights / weights.sum(-1, keepdims=True)


def one_by_one(drafts, p, q, u, keys) -> list[int]:
    """Verify with Python's numbers, one draft token after another."""
    for i, token in enumerate(drafts):
        if not accepts(float(p[i][token]), float(q[i][token]), u[i]):
            left = np.maximum(p[i] - q[i], 0)
            weights = left if left.sum() > 0 else p[i]
            return [*drafts[:i], int((weights / exponentials(*keys[i], 12)).argmax())]
    return [*drafts, int((p[-1] / exponentials(*keys[-1], 12)).argmax())]


@pytest.mark.parametrize("threshold", [None, 0.4, 1.0])
def test_verification_accepts_and_corrects_as_published(threshold):
    random = np.random.default_rng(4)
    lengths = []
    for seed in range(250):
        p = some_probabilities(random, 4, 0.3)
        q = some_probabilities(random, 3, 0.3)
        if seed % 4 == 0:
            q = p[:3].copy()  # all draft tokens are accepted, so the residual is empty
        drafts = [int(random.choice(12, p=row / row.sum(dtype=np.float64))) for row in q]
        if seed % 9 == 0:
            q[1] = np.nan  # from a broken draft model
        if seed % 7 == 0:
            drafts[0] = int(q[0].argmin())  # this token's probability in q is often 0
        purposes = [Purpose.RESIDUAL] * 3 + [Purpose.SAMPLE]
        keys = [(seed, 20 + i, purpose) for i, purpose in enumerate(purposes)]
        u = [threshold or uniform(seed, 20 + i, Purpose.ACCEPT) for i in range(3)]
        proposal = Proposal(drafts, q, u, [hash_key(*key) for key in keys])
        want = one_by_one(drafts, p, q, u, keys)
        assert verify_probabilities(iter(p), proposal) == want
        lengths.append(len(want))
    assert set(lengths) == {1, 2, 3, 4}


@pytest.mark.parametrize("u", [0.0, 0.5])
def test_a_token_that_the_target_never_samples_is_never_accepted(u):
    assert not accepts(0.0, 0.5, u)
    assert not accepts(np.float32(0), np.float32(0), np.float32(u))


@pytest.mark.parametrize(
    ("own", "emitted"),
    [([1, 2, 3], [1, 2, 3]), ([1, 2, 3, 4], [1, 2, 3]), ([1, 9, 3], [1, 9]), ([1], [1])],
)
def test_ids_are_accepted_until_the_targets_own_token_differs(own, emitted):
    assert verify_ids([1, 2], iter(own)) == emitted
