"""Sampled output has the target's distribution, for any draft model.

The loop generates words of two tokens (see `words`). The exact probability of each word is known.
The tests use the real loop, sampler, noise and verification. Further tests verify that the check
detects a single wrong rule.
"""

from __future__ import annotations

import numpy as np
import pytest
from distributions import Warp, fits
from scale import first_of
from words import VOCAB, Draft, Target, exact, speak

from tandem.bls.ports import EngineResult
from tandem.bls.seeds import derive_seed
from tandem.engines.noise import Purpose, exponentials
from tandem.engines.stepping import verification
from tandem.engines.stepping.sampling import CallSampler
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import probabilities

DRAWS = 2_000  # without logits, the target samples each token itself
# With 6,000 words, an acceptance rate that is 15% too high is detected in 99% of cases.
DRAWS_BY_LOGITS = 6_000
ALL_CUTS = Warp(0.7, top_k=20, top_p=0.95, min_p=0.02)


@pytest.mark.parametrize("use_draft_logits", [False, True], ids=["ids", "logits"])
@pytest.mark.parametrize("warp", first_of(Warp(1.0, top_p=0.9), ALL_CUTS), ids=str)
def test_sampled_tokens_have_the_targets_distribution(warp, use_draft_logits):
    draws = DRAWS_BY_LOGITS if use_draft_logits else DRAWS
    said = speak(draws, Target(warp), Draft(warp), use_draft_logits=use_draft_logits)
    expected = exact(warp)
    assert said.counts.sum() == draws
    assert fits(said.counts.sum(1), expected.sum(1))
    assert fits(said.counts, expected)
    assert 0.3 < said.acceptance < 0.9  # some drafts are accepted and some rejected


def test_drafting_ahead_keeps_the_targets_distribution():
    draws, warp = DRAWS // 2, Warp(1.0)
    said = speak(draws, Target(warp), Draft(warp), use_draft_logits=False, ahead=True)
    assert said.hits > draws / 10
    assert fits(said.counts.sum(1), exact(warp).sum(1))
    assert fits(said.counts, exact(warp))
    assert 0.3 < said.acceptance < 0.9


class AcceptsByTheProposalsNoise(CallSampler):
    """Reuse the draft token's random number for its acceptance, which is wrong."""

    def proposal(self, drafts, first):
        seed, u = derive_seed(self.seed, "propose"), []
        for i, token in enumerate(drafts):
            noise = exponentials(seed, first + i, Purpose.SAMPLE, VOCAB)
            u.append(1 - float(np.exp(-noise[token])))
        return super().proposal(drafts, first)._replace(u=u)


class ReusesTheProposalsNoise(Target):
    sampler = AcceptsByTheProposalsNoise


class StopsBehindUnlikelyTokens(Draft):
    """A draft that ends after the first token with a low draft probability. This is correct."""

    kept = 1

    def answers(self, call):
        (answer,) = super().answers(call)
        chances = [probabilities(row, SamplingNumbers()) for row in answer.draft_logits]
        unlikely = [i for i, t in enumerate(answer.tokens.tolist()) if chances[i][t] < 0.15]
        end = unlikely[0] + self.kept if unlikely else len(answer.tokens)
        yield EngineResult(answer.tokens[:end], draft_logits=answer.draft_logits[:end])


class DropsUnlikelyTokens(StopsBehindUnlikelyTokens):
    """A draft that ends before the unlikely token, so its tokens aren't samples from q."""

    kept = 0


WARP = Warp(0.7, top_k=20)


def passes(*, target=Target, draft=Draft) -> bool:
    """Return whether the generated words have the target's distribution."""
    said = speak(DRAWS, target(WARP), draft(WARP), use_draft_logits=True)
    expected = exact(WARP)
    return fits(said.counts.sum(1), expected.sum(1)) and fits(said.counts, expected)


@pytest.mark.heavy
def test_the_distribution_test_detects_corrections_from_the_whole_target(monkeypatch):
    monkeypatch.setattr(verification, "residual", lambda p, _q: p)
    assert not passes()


@pytest.mark.heavy
def test_the_distribution_test_detects_shared_random_numbers():
    assert not passes(target=ReusesTheProposalsNoise)


@pytest.mark.heavy
def test_drafts_that_stop_after_unlikely_tokens_keep_the_targets_distribution():
    assert passes(draft=StopsBehindUnlikelyTokens)


@pytest.mark.heavy
def test_the_distribution_test_detects_drafts_not_sampled_from_their_logits():
    assert not passes(draft=DropsUnlikelyTokens)
