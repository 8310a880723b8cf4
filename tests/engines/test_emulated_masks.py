"""The emulated language follows any grammar, with known probabilities."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from distributions import fits, is_share
from emulated import ALPHA, END, emulated, pair, settings
from engine_harness import GREEDY, VOCAB, prompt
from masks import masks
from scale import first_of

from tandem.engines.emulated.language import Language, Row
from tandem.engines.engine import SamplingParams

# At alpha 0.6, the draft knows the target's next row after IDS but not after UNKNOWN.
IDS = prompt(0, 12)
UNKNOWN = prompt(1, 12)
DRAWS = 250  # detects a probability of 0.5 instead of 0.3 in 98% of cases


def row_after(ids, *, may_end=True, **given) -> Row:
    language = Language(settings(**given))
    return language.row(language.read(np.array(ids, np.int32)), may_end=may_end)


def mask(*rows) -> np.ndarray:
    return masks(*rows, vocab_size=VOCAB)


def others(ids) -> list[int]:
    """Return all tokens that the language doesn't emit after the given ids."""
    return sorted(set(range(2, VOCAB)) - set(row_after(ids).tokens.tolist()))


def counted(target, ids, legal, **sampling) -> np.ndarray:
    """Return how often each token is emitted in DRAWS calls, shape [VOCAB]."""
    counts = np.zeros(VOCAB)
    for seed in range(DRAWS):
        asked = SamplingParams(**{"temperature": 1.0, **sampling}, seed=seed)
        counts[target.tokens(ids, sampling=asked, token_masks=mask(legal))[0]] += 1
    return counts


@pytest.mark.parametrize("warp", [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7}])
def test_allowed_tokens_keep_their_relative_probabilities(warp):
    target, row = emulated(alpha=0.3), row_after(IDS, alpha=0.3)
    ranks = [1, 2, 5, 8, 9, 12]
    legal, p = row.tokens[ranks], row.probabilities[ranks]
    warped = Row(legal, p / p.sum()).apply_sampling(SamplingParams(**{"temperature": 1.0, **warp}))
    expected = np.zeros(VOCAB)
    expected[warped.tokens] = warped.probabilities
    assert fits(counted(target, IDS, [*legal, *others(IDS)], **warp), expected)


def test_masked_drafts_are_right_with_probability_alpha():
    draft, target = pair()
    random, right = np.random.default_rng(4), 0
    for seed in range(300):
        ids = prompt(seed, 12)
        legal = mask(random.choice(VOCAB, 100, replace=False))
        right += draft.tokens(ids, token_masks=legal) == target.tokens(ids, token_masks=legal)
    assert is_share(right, 300, ALPHA)


def test_the_end_of_sequence_is_emitted_only_if_the_mask_allows_it():
    target = emulated(mean_answer_len=4)
    ends = [ids for ids in map(prompt, range(60), itertools.repeat(12)) if _ends(target, ids)]
    assert len(ends) > 5
    for ids in ends:
        assert target.tokens(ids, end_id=END, token_masks=mask(range(VOCAB))) == []
        rest = row_after(ids, may_end=False).tokens
        assert target.tokens(ids, token_masks=mask(range(2, VOCAB))) == [rest[0]]
        assert target.tokens(ids, token_masks=mask([END])) == [END]
        owed = replace(GREEDY, min_tokens=1)
        asked = {"token_masks": mask(range(VOCAB)), "sampling": owed}
        assert target.tokens(ids, end_id=END, **asked) == [rest[0]]
        assert target.tokens(ids, **asked) == [rest[0]]
    never = emulated(end_id=None)
    assert END not in never.tokens(IDS, 200, token_masks=mask(*[range(VOCAB)] * 200))


def _ends(target, ids) -> bool:
    return target.tokens(ids) == [END]


@pytest.mark.parametrize("ids", [IDS, UNKNOWN])
@pytest.mark.parametrize("among", ["its own", "others"])
@pytest.mark.parametrize("warp", first_of({"temperature": 0.7}, {}, {"top_k": 4}, {"top_p": 0.8}))
def test_drafts_with_logits_keep_the_masked_targets_distribution(ids, among, warp):
    draft, target = pair(alpha=0.6)
    row = row_after(ids, alpha=0.6)
    legal = row.tokens[[0, 2, 5, 9]].tolist() if among == "its own" else others(ids)[:40]
    plain = counted(target, ids, legal, **warp)  # correct, as the tests above show
    verified = np.zeros(VOCAB)
    for seed in range(DRAWS):
        sampling = SamplingParams(**{"temperature": 1.0, **warp}, seed=seed)
        proposal = draft.call(ids, 1, sampling=sampling, return_generation_logits=True)
        answer = target.call(
            ids,
            2,
            drafts=proposal.tokens,
            draft_logits=proposal.last.generation_logits,
            token_masks=mask(legal, range(VOCAB) if proposal.tokens[0] in legal else []),
            sampling=replace(sampling, seed=seed + 9999),
        )
        verified[answer.tokens[0]] += 1
    assert set(np.flatnonzero(verified)) <= set(legal)
    both = plain + verified
    assert fits(np.stack([plain, verified]), np.stack([both, both]) / both.sum() / 2)
