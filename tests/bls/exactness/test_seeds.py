"""Each call gets the right seed, and output that a seed can't reproduce is detected."""

from dataclasses import replace

import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.request import GREEDY, Request, Sampling
from tandem.bls.seeds import (
    derive_seed,
    output_depends_on_lengths,
    proposal_seed,
    verification_seed,
)

SAMPLED = Request(
    prompt_ids=ids(1),
    max_tokens=4,
    sampling=Sampling(top_k=0, seed=5),
    seeded=True,
    drafter="draft_model",
    use_draft_logits=True,
)
UNKEYED = with_engines(SETTINGS, target={"keyed_randomness": False})


def test_derived_seeds_depend_on_every_part_of_the_key():
    seeds = [derive_seed(seed, *key) for seed in (0, 1) for key in ((), (1,), (1, "a"), (2, "a"))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**60
    # A seed must give the same output in every later version.
    assert derive_seed(1, "verify", 7) == 6760769898326313179


def test_keyed_engines_get_the_requests_own_seed():
    assert verification_seed(5, 7, keyed=True) == 5
    assert proposal_seed(5, 7, keyed=True, use_draft_logits=False) == 5


def test_the_draft_gets_its_own_seed_in_logits_mode():
    ahead = {proposal_seed(5, at, keyed=True, use_draft_logits=True) for at in range(9)}
    assert len(ahead) == 1
    assert 5 not in ahead


def test_unkeyed_engines_get_a_new_seed_per_call():
    seeds = [verification_seed(5, at, keyed=False) for at in range(9)]
    seeds += [proposal_seed(5, at, keyed=False, use_draft_logits=False) for at in range(9)]
    assert len({5, *seeds}) == 19


def test_a_different_request_seed_changes_the_seed_of_every_call():
    for keyed in (True, False):
        assert verification_seed(5, 7, keyed=keyed) != verification_seed(6, 7, keyed=keyed)
        for logits in (True, False):
            one, other = (
                proposal_seed(seed, 7, keyed=keyed, use_draft_logits=logits) for seed in (5, 6)
            )
            assert one != other


@pytest.mark.parametrize(
    ("request_", "settings", "decide"),
    [
        (SAMPLED, SETTINGS, True),
        (replace(SAMPLED, use_draft_logits=False), SETTINGS, False),
        (replace(SAMPLED, drafter="none"), SETTINGS, False),
        (replace(SAMPLED, drafter="engine"), SETTINGS, False),
        (replace(SAMPLED, seeded=False), SETTINGS, False),
        (replace(SAMPLED, sampling=GREEDY), SETTINGS, False),
        (replace(SAMPLED, use_draft_logits=False), UNKEYED, True),
        (replace(SAMPLED, drafter="none"), UNKEYED, True),
        (replace(SAMPLED, seeded=False), UNKEYED, False),
        (replace(SAMPLED, sampling=GREEDY), UNKEYED, False),
    ],
)
def test_seeded_output_that_depends_on_draft_lengths_is_detected(request_, settings, decide):
    assert output_depends_on_lengths(request_, settings) == decide
