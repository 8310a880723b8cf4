"""Each call gets the right seed, and output that a seed can't reproduce is detected."""

from dataclasses import replace

import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.exactness.seeds import (
    derived_seed,
    lengths_decide_text,
)
from tandem.bls.request import GREEDY, Request, Sampling

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
    seeds = [derived_seed(seed, *key) for seed in (0, 1) for key in ((), (1,), (1, "a"), (2, "a"))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**60
    # A seed must give the same output in every later version.
    assert derived_seed(1, "verify", 7) == 6760769898326313179


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
    assert lengths_decide_text(request_, settings) == decide
