"""In virtual time, adaptive draft lengths are at least as fast as the best fixed length."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import SETTINGS, Health, ids, play, with_engines
from timed import LENGTH, Text, Times, World, auto, best_fixed, tokens_per_second

from tandem.bls.draft_length.planner import DraftPlanner
from tandem.bls.drafters.draft_model import DraftModel, SharedVocabulary
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.drafters.factory import drafter_of
from tandem.bls.effects import DraftPlan
from tandem.bls.errors import EngineCallError
from tandem.bls.loop import Decoding
from tandem.bls.request import Request
from tandem.bls.settings import AUTO

# Step times in seconds, and alphas (mean, hard text), from profiles/emulated-*.yaml
VERIFY_SLOPE = 0.005
PAIRS = {
    "70b-1b": (Times(0.019554, VERIFY_SLOPE, 0.00113), 0.81278, 0.517),
    "405b-3b": (Times(0.029886, VERIFY_SLOPE, 0.0016), 0.86243, 0.671),
}
SMALL = PAIRS["70b-1b"][0]
NEAR_BEST = (6, 8)  # for each pair, one of these fixed lengths is within 1% of the best


def even(alpha, seed=0):
    return Text.of((alpha,), (1.0,), seed)


def easy_and_hard(hard_alpha, seed=0):
    return Text.of((0.95, hard_alpha), (0.92, 0.80), seed)


def gain(texts, times, **options):
    """Return the mean speedup over the best fixed length, minus 1."""
    ratios = [auto(t, times, **options) / best_fixed(t, times, NEAR_BEST) for t in texts]
    return np.mean(ratios) - 1


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rated", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_auto_is_within_two_percent_of_the_best_fixed_length(pair, rated):
    times, alpha, _ = PAIRS[pair]
    assert gain([even(alpha, seed) for seed in range(2)], times, rated=rated) > -0.02


@pytest.mark.parametrize("pair", PAIRS)
def test_auto_beats_every_fixed_length_on_mixed_text(pair):
    times, _, hard = PAIRS[pair]
    assert gain([easy_and_hard(hard)], times) > 0.04


def test_auto_is_faster_if_it_can_stop_drafts_early():
    assert gain([easy_and_hard(PAIRS["70b-1b"][2])], SMALL) > 0.06


def test_auto_loses_almost_no_speed_if_every_draft_is_wrong():
    text = even(0.0)
    assert auto(text, SMALL) > 0.97 * tokens_per_second(World(text, SMALL), 0)


def test_auto_uses_the_maximum_length_if_every_draft_is_right():
    text = even(1.0)
    world = World(text, SMALL)
    assert tokens_per_second(world, AUTO) > 0.95 * tokens_per_second(World(text, SMALL), 16)
    assert np.median(world.drafted) == 16


def test_auto_stops_drafting_if_drafts_do_not_pay():
    slow = Times(target=0.005, verify_slope=0.3, draft=0.004)
    text = even(0.5)
    assert auto(text, slow) > 0.95 * tokens_per_second(World(text, slow), 0)


def test_auto_shortens_drafts_if_verification_is_costly():
    lengths = {}
    for slope in (0.005, 0.3):
        world = World(even(0.8), Times(0.019554, slope, 0.00113))
        tokens_per_second(world, AUTO)
        lengths[slope] = np.mean(world.drafted)
    assert lengths[0.3] < 0.6 * lengths[0.005]


def test_each_round_records_its_planned_draft_length():
    world = World(even(0.7), SMALL)
    settings = with_engines(SETTINGS, draft={"stops_when_unsure": True})
    request = Request(
        prompt_ids=ids(1), max_tokens=60, drafter="draft_model", draft_len=AUTO, max_draft_len=16
    )
    draft_planner = DraftPlanner(16, clock=lambda: world.seconds, rated=True)
    decoding = Decoding(
        request,
        settings,
        drafter_of(request, DrafterContext(settings, Health(), draft_planner)),
        clock=lambda: world.seconds,
    )
    play(decoding, world, world)
    rounds = decoding.statistics.as_dict()["rounds"]
    drafted = [r for r in rounds if r["num_draft_tokens"]]
    assert all(r["planned_tokens"] >= r["num_draft_tokens"] for r in drafted)
    assert all(r["target_seconds"] > 0 for r in rounds)
    emitted = sum(r["num_accepted_tokens"] + 1 for r in drafted) + sum(
        r["num_plain_tokens"] for r in rounds
    )
    assert emitted >= 60


def test_hybrid_resumes_drafting_after_an_experiment_without_drafts():
    world = World(even(0.9), SMALL)
    # No match reaches the minimum size, so the draft model makes all drafts.
    settings = with_engines(
        replace(SETTINGS, hybrid_min_ngram_size=2),
        target={"max_seq_len": 10**6},
        draft={"max_seq_len": 10**6},
    )
    request = Request(
        prompt_ids=ids(1),
        max_tokens=LENGTH,
        drafter="hybrid",
        draft_len=AUTO,
        max_draft_len=16,
        prompt_lookup_num_tokens=4,
    )
    draft_planner = DraftPlanner(16, clock=lambda: world.seconds, rated=True)
    drafter = drafter_of(request, DrafterContext(settings, Health(), draft_planner))
    play(Decoding(request, settings, drafter, clock=lambda: world.seconds), world, world)
    assert len(world.drafted) > LENGTH / 17


def test_the_time_of_a_failed_draft_is_not_counted_as_the_targets():
    world, steps = World(even(0.9), SMALL), []
    length = SimpleNamespace(
        plan=lambda _limit, **_: DraftPlan(4),
        observe_plain_step=lambda tokens, seconds: steps.append((tokens, seconds)),
    )

    def fail(_):
        world.seconds += 5.0
        raise EngineCallError("draft", "it fell over")

    world.draft = fail
    request = Request(prompt_ids=ids(1), max_tokens=3, drafter="draft_model", draft_len=4)
    drafter = DraftModel(
        SETTINGS.draft, SharedVocabulary(SETTINGS.draft, SETTINGS.target), Health(), length
    )
    play(Decoding(request, SETTINGS, drafter, clock=lambda: world.seconds), world, world)
    assert sum(tokens for tokens, _ in steps) == 3
    assert steps[0][1] < 1.0
