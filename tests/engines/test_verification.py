"""The target accepts right draft tokens and replaces the first wrong one."""

from __future__ import annotations

import numpy as np
import pytest
from engine_harness import VOCAB, prompt

from tandem.engines.request import SamplingParams
from tandem.engines.torch.verification import verify_ids


@pytest.mark.parametrize(
    ("chosen", "emitted"),
    [([5, 6, 7, 8], [5, 6, 7, 8]), ([5, 9, 7, 8], [5, 9]), ([4, 6, 7, 8], [4])],
    ids=["all right", "one right", "none right"],
)
def test_the_first_mismatch_is_replaced_by_the_correction(chosen, emitted):
    assert verify_ids([5, 6, 7], chosen) == emitted


def test_verification_emits_at_most_the_requested_number_of_tokens(llama):
    ids = prompt(5, 12)
    text = llama.tokens(ids, 6)
    assert llama.tokens(ids, 2, drafts=text[:4]) == text[:2]


def test_a_draft_with_the_targets_weights_and_seed_is_fully_accepted(llama):
    sampling = SamplingParams(temperature=0.9, seed=5)
    ids = prompt(6, 10)
    drafts = llama.tokens(ids, 6, sampling=sampling)
    assert llama.call(ids, 7, drafts=drafts, sampling=sampling).last.usage.accepted_tokens == 6


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
