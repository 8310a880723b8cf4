"""Verification: what the target keeps of a draft, and with what distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, prompt
from scipy.stats import chisquare

from tandem.engines.noise import Purpose, exponentials, uniform
from tandem.engines.request import SamplingParams
from tandem.engines.torch.verification import draw, verify_ids, verify_probabilities

DRAWS = 20_000
P = torch.tensor([0.45, 0.25, 0.2, 0.1, 0.0])
Q = torch.tensor([0.1, 0.4, 0.2, 0.05, 0.25])
AFTER = torch.tensor([0.05, 0.15, 0.2, 0.25, 0.35])  # the target's distribution behind any token


def test_all_right_drafts_are_kept_and_a_bonus_added():
    assert verify_ids([5, 6, 7], [5, 6, 7, 8]) == [5, 6, 7, 8]


def test_first_unequal_token_is_the_correction():
    assert verify_ids([5, 6, 7], [5, 9, 7, 8]) == [5, 9]


def test_nothing_kept_leaves_the_correction_alone():
    assert verify_ids([5, 6], [4, 6, 8]) == [4]


@pytest.mark.parametrize("right", range(5))
def test_engine_emits_what_it_accepts_and_one_more(llama, right):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    drafts = [t if i < right else (t + 3) % VOCAB for i, t in enumerate(text[:4])]
    outcome = llama.call(ids, 5, drafts=drafts)
    assert outcome.tokens == text[: right + 1]
    assert outcome.last.usage.accepted_tokens == right


def test_verification_emits_no_more_than_asked_for(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    assert llama.tokens(ids, 2, drafts=text[:4]) == text[:2]


def test_noise_depends_on_its_key_alone():
    first = exponentials(9, 4, Purpose.SAMPLE, 50)
    assert np.array_equal(first, exponentials(9, 4, Purpose.SAMPLE, 80)[:50])
    others = [(8, 4, Purpose.SAMPLE), (9, 5, Purpose.SAMPLE), (9, 4, Purpose.ACCEPT)]
    for key in others:
        assert not np.allclose(first, exponentials(*key, 50))
    assert uniform(9, 4, Purpose.ACCEPT) == uniform(9, 4, Purpose.ACCEPT)
    assert exponentials(2**64 - 1, 4, Purpose.SAMPLE, 3).min() > 0


def passes(counts: np.ndarray, expected: torch.Tensor) -> bool:
    """Whether the counts fit the probabilities."""
    probabilities = expected.double().numpy()
    live = probabilities > 0
    if counts[~live].any():
        return False
    want = probabilities[live] / probabilities[live].sum() * counts.sum()
    return chisquare(counts[live], want).pvalue > 1e-3


def first_two(rule) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the first emitted token, and of the second where there is one."""
    first, second = np.zeros(5), np.zeros(5)
    for seed in range(DRAWS):
        emitted = rule(seed)
        first[emitted[0]] += 1
        if len(emitted) > 1:
            second[emitted[1]] += 1
    return first, second


def test_logits_mode_has_the_targets_distribution():
    def rule(seed):
        proposal = draw(Q, seed + 10**6, 7, Purpose.SAMPLE)
        p = torch.stack((P, AFTER))
        return verify_probabilities([proposal], p, Q[None], seed=seed, position=7)

    first, second = first_two(rule)
    assert passes(first, P)
    assert passes(second, AFTER)
    kept = float(torch.minimum(P, Q).sum())
    assert abs(second.sum() / DRAWS - kept) < 0.02


@pytest.mark.heavy
def test_logits_mode_holds_even_when_both_sides_have_one_seed():
    def rule(seed):
        proposal = draw(Q, seed, 7, Purpose.SAMPLE)
        p = torch.stack((P, AFTER))
        return verify_probabilities([proposal], p, Q[None], seed=seed, position=7)

    first, second = first_two(rule)
    assert passes(first, P)
    assert passes(second, AFTER)


def test_id_mode_has_the_targets_distribution():
    def rule(seed):
        proposal = draw(Q, seed, 7, Purpose.SAMPLE)
        own = [draw(P, seed, 7, Purpose.SAMPLE), draw(AFTER, seed, 8, Purpose.SAMPLE)]
        return verify_ids([proposal], own)

    first, second = first_two(rule)
    assert passes(first, P)
    assert passes(second, AFTER)
    # One seed on both sides makes them agree more often than independent draws would.
    assert second.sum() / DRAWS > 1.5 * float((P * Q).sum())


@pytest.mark.heavy
def test_drawing_again_on_a_mismatch_would_bias():
    def rule(seed):
        proposal = draw(Q, seed, 7, Purpose.SAMPLE)
        own = draw(P, seed, 7, Purpose.SAMPLE)
        return [own if own == proposal else draw(P, seed, 7, Purpose.RESIDUAL)]

    first, _ = first_two(rule)
    assert not passes(first, P)


@pytest.mark.heavy
def test_constant_threshold_is_lossy():
    def rule(seed):
        proposal = draw(Q, seed + 10**6, 7, Purpose.SAMPLE)
        p = torch.stack((P, AFTER))
        return verify_probabilities([proposal], p, Q[None], seed=seed, position=7, threshold=0.1)

    first, _ = first_two(rule)
    assert not passes(first, P)


@pytest.mark.parametrize("draft_len", [1, 2, 5, 8])
@pytest.mark.parametrize("same_drafter", [True, False])
def test_sampled_text_in_id_mode_is_the_controls(llama, make_harness, draft_len, same_drafter):
    sampling = SamplingParams(temperature=1.2, top_k=40, top_p=0.95, seed=1234)
    ids = prompt(6, 10)
    want = llama.tokens(ids, 30, sampling=sampling)
    drafter = llama if same_drafter else make_harness("qwen2")
    text: list[int] = []
    while len(text) < 24:
        drafts = drafter.tokens(ids + text, draft_len, sampling=sampling)
        text += llama.tokens(ids + text, draft_len + 1, drafts=drafts, sampling=sampling)
    assert text == want[: len(text)]


def test_a_drafter_with_the_targets_weights_and_seed_is_always_right(llama):
    sampling = SamplingParams(temperature=0.9, seed=5)
    ids = prompt(6, 10)
    drafts = llama.tokens(ids, 6, sampling=sampling)
    assert llama.call(ids, 7, drafts=drafts, sampling=sampling).last.usage.accepted_tokens == 6


def test_logits_mode_accepts_everything_when_q_is_p(llama):
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


@pytest.mark.heavy
def test_logits_mode_in_the_engine_has_the_controls_distribution(llama, make_harness):
    """The first two tokens of a draft-and-verify round against plain sampling."""
    ids = prompt(8, 6)
    warped = {"temperature": 1.0, "top_k": 4, "frequency_penalty": 0.5}
    drafter = make_harness("qwen2")
    plain, rounds = [], []
    for seed in range(1500):
        control = SamplingParams(**warped, seed=seed)
        plain.append(llama.tokens(ids, 2, sampling=control)[1])
        draft = drafter.call(
            ids,
            2,
            sampling=SamplingParams(**warped, seed=seed + 10**6),
            return_generation_logits=True,
        )
        text = llama.tokens(
            ids,
            3,
            drafts=draft.tokens,
            draft_logits=draft.last.generation_logits,
            sampling=SamplingParams(**warped, seed=seed + 2 * 10**6),
        )
        if len(text) < 2:
            text += llama.tokens(ids + text, 1, sampling=SamplingParams(**warped, seed=seed + 7**9))
        rounds.append(text[1])
    table = np.array([np.bincount(tokens, minlength=VOCAB) for tokens in (plain, rounds)])
    table = table[:, table.sum(0) >= 20]
    expected = table.sum(0) * table.sum(1, keepdims=True) / table.sum()
    assert chisquare(table.ravel(), expected.ravel(), ddof=table.shape[1]).pvalue > 1e-3


def test_greedy_logits_mode_compares_with_the_best_token(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    logits = np.zeros((4, VOCAB), np.float32)
    assert llama.tokens(ids, 5, drafts=text[:4], draft_logits=logits) == text[:5]


def test_id_mode_pairs_of_positions_do_not_share_noise():
    draws = [exponentials(3, position, Purpose.SAMPLE, 20) for position in range(6)]
    assert all(not np.allclose(a, b) for a, b in itertools.combinations(draws, 2))
