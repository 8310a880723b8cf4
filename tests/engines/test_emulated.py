"""The emulated engine has a fixed output per prompt and an acceptance rate of alpha."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from distributions import fits, is_share
from emulated import ALPHA, END, accepted, emulated, pair, settings
from engine_harness import VOCAB, prompt
from paths import ROOT
from scale import first_of

from tandem.engines.emulated.language import Language
from tandem.engines.engine import SamplingParams
from tandem.engines.errors import LoadError, RequestError

WIDE = {"vocab_size": 4096, "high_id": 4000, "max_seq_len": 4096}
TRIALS = 400  # detects a probability of 0.65 instead of 0.8 in 99% of cases


def sampled(**given) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, **given})


def is_alpha(successes: int, trials: int, alpha: float = ALPHA) -> bool:
    return is_share(successes, trials, alpha)


def test_different_prompts_get_different_outputs():
    target = emulated(**WIDE)
    texts = [tuple(target.tokens(prompt(seed, 20), 8)) for seed in range(20)]
    assert len(set(texts)) == 20
    early, late = prompt(1, 20), prompt(1, 20)
    early[0] += 1
    assert target.tokens(early, 8) != target.tokens(late, 8)


def test_output_does_not_depend_on_the_engine_or_alpha():
    ids = prompt(1, 20)
    want = emulated().tokens(ids, 30)
    assert emulated(alpha=0.3, hard_alpha=0.1).tokens(ids, 30) == want


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_greedy_drafts_are_right_with_probability_alpha(alpha):
    draft, target = pair(alpha=alpha, **WIDE)
    right = sum(
        draft.tokens(ids, 1) == target.tokens(ids, 1)
        for ids in (prompt(seed, 12) for seed in range(TRIALS))
    )
    assert is_alpha(right, TRIALS, alpha)


def test_accepted_lengths_follow_a_geometric_distribution():
    draft, target = pair(**WIDE)
    counts = np.bincount(
        [accepted(draft, target, prompt(seed, 12), 5) for seed in range(TRIALS)], minlength=6
    )
    chances = [(1 - ALPHA) * ALPHA**n for n in range(5)] + [ALPHA**5]
    assert fits(counts, chances)


@pytest.mark.parametrize("warp", [{}, {"temperature": 0.5}, {"top_k": 3}])
@pytest.mark.parametrize("logits", [False, True], ids=["ids", "logits"])
def test_sampled_drafts_are_accepted_with_probability_alpha(logits, warp):
    draft, target = pair(**WIDE)
    kept = 0
    for seed in range(300):
        ids = prompt(seed, 12)
        proposal = draft.call(
            ids, 1, sampling=sampled(seed=seed, **warp), return_generation_logits=logits
        )
        answer = target.call(
            ids,
            2,
            drafts=proposal.tokens,
            draft_logits=proposal.last.generation_logits,
            sampling=sampled(seed=seed + 5000 * logits, **warp),  # the draft's seed in id mode
        )
        kept += answer.last.usage.accepted_tokens
    assert is_alpha(kept, 300)


@pytest.mark.parametrize("warp", first_of({"temperature": 0.7}, {}, {"top_k": 4}, {"top_p": 0.9}))
def test_drafts_with_logits_keep_the_targets_distribution(warp):
    draft, target = pair(alpha=0.6)
    language = Language(settings(alpha=0.6))
    for known, ids in ((True, prompt(0, 12)), (False, prompt(1, 12))):
        row = language.row(language.read(np.array(ids, np.int32)), may_end=True)
        counts = np.zeros(VOCAB)
        for seed in range(400):
            proposal = draft.call(
                ids, 1, sampling=sampled(seed=seed, **warp), return_generation_logits=True
            )
            answer = target.call(
                ids,
                2,
                drafts=proposal.tokens,
                draft_logits=proposal.last.generation_logits,
                sampling=sampled(seed=seed + 9999, **warp),
            )
            counts[answer.tokens[0]] += 1
        assert answer.last.usage.accepted_tokens == known
        p = np.zeros(VOCAB)
        warped = row.apply_sampling(sampled(**warp))
        p[warped.tokens] = warped.probabilities
        assert fits(counts, p)


def test_the_most_likely_token_has_probability_alpha():
    outcome = emulated().call(prompt(1, 9), 6, return_log_probs=True)
    np.testing.assert_allclose(outcome.last.log_probs, np.log(ALPHA), rtol=1e-6)


def test_easy_and_hard_text_have_the_configured_shares_and_acceptance_rates():
    given = {"alpha": 0.95, "hard_alpha": 0.5, "max_seq_len": 20_000, "kv_cache_tokens": 20_000}
    draft, target = pair(**WIDE | given)
    ids = prompt(1, 12)
    sure = target.call(ids, 3000, return_log_probs=True)
    easy = np.exp(sure.last.log_probs) > 0.9
    stays_easy, stays_hard = easy[1:][easy[:-1]], ~easy[1:][~easy[:-1]]
    assert is_alpha(stays_easy.sum(), len(stays_easy), 0.92)
    assert is_alpha(stays_hard.sum(), len(stays_hard), 0.8)
    text = ids + sure.tokens
    right = np.array([draft.tokens(text[: 12 + at], 1)[0] == text[12 + at] for at in range(800)])
    assert is_alpha(right[easy[:800]].sum(), easy[:800].sum(), 0.95)
    assert is_alpha(right[~easy[:800]].sum(), (~easy[:800]).sum(), 0.5)


def test_drafts_stop_early_in_hard_text():
    draft, _ = pair(alpha=0.95, hard_alpha=0.5)
    lengths = set()
    for seed in range(40):
        outcome = draft.call(
            prompt(seed, 12), 10, draft_stop_probability=0.4, return_log_probs=True
        )
        sure = np.exp(np.cumsum(outcome.last.log_probs)) >= 0.4
        assert sure[:-1].all()
        assert len(sure) == 10 or not sure[-1]
        lengths.add(len(sure))
    assert len(lengths) > 3


def test_output_ends_early_only_if_mean_answer_len_is_set():
    ids = prompt(1, 12)
    assert END not in emulated().tokens(ids, 240)
    target = emulated(mean_answer_len=20)
    lengths = [len(target.tokens(prompt(seed, 12), 240, end_id=END)) for seed in range(400)]
    assert 16 < np.mean(lengths) < 24


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("repetition_penalty", {"sampling": SamplingParams(repetition_penalty=1.2)}),
        ("presence_penalty", {"sampling": SamplingParams(presence_penalty=0.5)}),
        ("frequency_penalty", {"sampling": SamplingParams(frequency_penalty=0.5)}),
        (
            "embedding_bias",
            {"sampling": SamplingParams(embedding_bias=np.zeros(VOCAB, np.float32))},
        ),
        ("return_context_logits", {"return_context_logits": True}),
    ],
)
def test_unsupported_inputs_are_rejected(name, given):
    with pytest.raises(RequestError, match=f"{name} isn't supported by the emulated engine"):
        emulated().call(prompt(1, 5), 2, **{"sampling": SamplingParams(), **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 1.5}, "alpha must be between 0 and 1; got 1.5"),
        ({"step_ms": -1}, "step_ms must be at least 0; got -1"),
        ({"low_id": 100}, "must span at least 32 ids below vocab_size 131"),
        ({"high_id": 200}, "must span at least 32 ids below vocab_size 131"),
        ({"end_id": 7}, "end_id must not be between low_id and high_id; got 7"),
        ({"end_id": None, "mean_answer_len": 9}, "mean_answer_len requires end_id"),
        ({"stay_easy": 1, "stay_hard": 1}, "must not both be 1"),
    ],
)
def test_errors_name_the_invalid_setting(given, message):
    with pytest.raises(LoadError, match=message):
        settings(**given)


def test_an_emulated_engine_does_not_import_torch():
    code = "import sys, tandem.engines.kinds, tandem.engines.emulated.engine"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
