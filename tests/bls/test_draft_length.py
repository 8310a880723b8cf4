"""Adaptive draft lengths earn what the best fixed one does, or more, in virtual time."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import SETTINGS, Health, ids, play, with_engines
from timed import LENGTH, Text, Times, World, auto, best_fixed, tokens_per_second

from tandem.bls.draft_length import (
    LONGEST_REST,
    PRIOR_ROUNDS,
    SHARED_MEMORY,
    AdaptiveLength,
    DraftStatistics,
    LatencyModel,
)
from tandem.bls.drafters import drafter_of
from tandem.bls.effects import Draft, DraftPlan, EngineAnswer
from tandem.bls.loop import Decoding
from tandem.bls.request import Request
from tandem.bls.settings import AUTO

# Published H200 rows, as profiles/emulated-*.yaml have them: step, draft step, alpha, hard alpha
VERIFY_SLOPE = 0.005
PAIRS = {
    "70b-1b": (Times(0.019554, VERIFY_SLOPE, 0.00113), 0.81278, 0.517),
    "70b-3b": (Times(0.019554, VERIFY_SLOPE, 0.00187), 0.85442, 0.647),
    "70b-8b": (Times(0.019554, VERIFY_SLOPE, 0.00303), 0.86483, 0.679),
    "405b-1b": (Times(0.029886, VERIFY_SLOPE, 0.00109), 0.81408, 0.521),
    "405b-3b": (Times(0.029886, VERIFY_SLOPE, 0.0016), 0.86243, 0.671),
}
SMALL = PAIRS["70b-1b"][0]
NEAR_BEST = (5, 6, 8, 10)  # fixed lengths among which the best is found for each of them


def even(alpha, seed=0):
    return Text.of((alpha,), (1.0,), seed)


def easy_and_hard(hard_alpha, seed=0):
    return Text.of((0.95, hard_alpha), (0.92, 0.80), seed)


def gain(texts, times, **options):
    """How much faster than the best fixed length, over some texts."""
    ratios = [auto(t, times, **options) / best_fixed(t, times, NEAR_BEST) for t in texts]
    return np.mean(ratios) - 1


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rated", [True, False])
def test_on_an_even_text_it_loses_at_most_two_percent_to_the_best_fixed_length(pair, rated):
    times, alpha, _ = PAIRS[pair]
    assert gain([even(alpha, seed) for seed in range(2)], times, rated=rated) > -0.02


@pytest.mark.parametrize("pair", PAIRS)
def test_on_an_uneven_text_it_beats_every_fixed_length(pair):
    times, _, hard = PAIRS[pair]
    assert gain([easy_and_hard(hard)], times) > 0.04


def test_on_70b_with_1b_it_gains_six_percent_by_stopping_inside_the_call():
    assert gain([easy_and_hard(PAIRS["70b-1b"][2])], SMALL) > 0.06


def test_a_draft_that_is_always_wrong_costs_next_to_nothing():
    text = even(0.0)
    assert auto(text, SMALL) > 0.97 * tokens_per_second(World(text, SMALL), 0)


def test_a_perfect_draft_is_used_to_its_full_length():
    text = even(1.0)
    world = World(text, SMALL)
    assert tokens_per_second(world, AUTO) > 0.95 * tokens_per_second(World(text, SMALL), 16)
    assert np.median(world.drafted) == 16


def test_where_a_draft_costs_more_than_it_earns_the_target_goes_on_alone():
    slow = Times(target=0.005, verify_slope=0.3, draft=0.004)
    text = even(0.5)
    assert auto(text, slow) > 0.95 * tokens_per_second(World(text, slow), 0)


def test_each_request_finds_its_own_length():
    texts = [Text.of((alpha,), (1.0,), seed) for seed, alpha in enumerate([0.95, 0.1] * 6)]
    both = dict.fromkeys((AUTO, 2, 3, 4, 6, 8), 0.0)
    for draft_len in both:
        draft_statistics = DraftStatistics(16, rated=True)
        both[draft_len] = sum(seconds_of(text, draft_len, draft_statistics) for text in texts)
    assert both[AUTO] < min(seconds for length, seconds in both.items() if length != AUTO)


def seconds_of(text, draft_len, draft_statistics):
    settings = with_engines(SETTINGS, target={"max_seq_len": 10**6}, draft={"max_seq_len": 10**6})
    request = Request(
        prompt_ids=ids(1),
        max_tokens=256,
        drafter="draft_model",
        draft_len=draft_len,
        max_draft_len=16,
    )
    world = World(text, SMALL)
    play(
        Decoding(request, settings, drafter_of(request, settings, Health(), draft_statistics)),
        world,
        world,
    )
    return world.seconds


def test_costs_are_learned_from_calls_of_different_length():
    line = LatencyModel(through_zero=False)
    for tokens in (1, 5, 9, 3):
        line.add(tokens, 0.010 + 0.001 * tokens)
    assert line.fit() == pytest.approx((0.010, 0.001))


def test_calls_of_nearly_one_length_tell_both_costs():
    line = LatencyModel(through_zero=False)
    for tokens in (4, 5) * 3:
        line.add(tokens, 0.010 + 0.001 * tokens)
    assert line.fit() == pytest.approx((0.010, 0.001))


@pytest.mark.parametrize("through_zero", [True, False])
def test_calls_of_one_length_tell_one_cost(through_zero):
    line = LatencyModel(through_zero=through_zero)
    for _ in range(3):
        line.add(5, 0.015)
    assert line.fit() == pytest.approx((0.0, 0.003) if through_zero else (0.015, 0.0))


def test_a_call_counts_for_three_times_its_expected_length_at_most():
    hung, slow = LatencyModel(through_zero=True), LatencyModel(through_zero=True)
    for line, seconds in ((hung, 30.0), (slow, 0.060)):
        line.add(5, 0.010)
        line.add(10, seconds)
    assert hung.fit() == slow.fit()


def test_one_call_that_hung_does_not_spoil_the_costs():
    line = LatencyModel(through_zero=False)
    for tokens in (1, 5, 9, 3) * 20:
        line.add(tokens, 0.010 + 0.001 * tokens)
    line.add(4, 30.0)
    fixed, each = line.fit()
    assert fixed + 4 * each < 0.020


def test_a_load_that_makes_verifying_dear_shortens_the_drafts():
    lengths = {}
    for slope in (0.005, 0.3):
        world = World(even(0.8), Times(0.019554, slope, 0.00113))
        tokens_per_second(world, AUTO)
        lengths[slope] = np.mean(world.drafted)
    assert lengths[0.3] < 0.6 * lengths[0.005]


def test_a_shorter_draft_is_known_exactly_from_a_longer_one():
    draft_statistics = DraftStatistics(8, rated=True)
    own = draft_statistics.own_arms()
    probabilities = np.array([0.9, 0.9, 0.5, 0.9], np.float32)
    draft = Draft(
        ids(1, 1, 1, 1), answer=EngineAnswer(ids(1, 1, 1, 1), log_probs=np.log(probabilities))
    )
    draft_statistics.learn_acceptance(draft, 2, own)
    arms = dict(
        zip(
            zip(own.lengths, own.stops, strict=True),
            zip(own.drafted, own.emitted, strict=True),
            strict=True,
        )
    )
    assert arms[1, 0.0] == (1, 2)
    assert arms[4, 0.0] == (4, 3)
    assert arms[4, 0.6] == (3, 3)  # 0.9 * 0.9 * 0.5 is less


def taught(rounds=3):
    """Statistics of rounds that drafted 2 tokens and kept 1, and the rates of a new request."""
    draft_statistics = DraftStatistics(2, rated=False)
    own = draft_statistics.own_arms()
    for _ in range(rounds):
        answer = EngineAnswer(ids(1, 1), seconds=0.02)
        draft_statistics.learn(Draft(ids(1, 1), answer=answer), 1, 0.05, own)
    return draft_statistics, own


def test_rates_are_tokens_a_second_by_what_rounds_cost_and_earned():
    draft_statistics, own = taught()
    for arms in (own, draft_statistics.own_arms()):  # one with experience, one that begins
        rates, alone = draft_statistics.rates(arms)
        # One token kept and one of the target's own, for 50 ms and 10 ms a draft token.
        assert rates == pytest.approx([2 / 0.06, 2 / 0.07])
        assert alone == pytest.approx(1 / 0.05)


def test_a_requests_own_rounds_count_beside_what_all_have_learned():
    draft_statistics, own = taught()
    own.add(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    rounds = own.rounds + PRIOR_ROUNDS
    emitted = own.emitted + 2 * PRIOR_ROUNDS
    drafted = own.drafted + np.array([1, 2]) * PRIOR_ROUNDS
    rates, _ = draft_statistics.rates(own)
    assert rates == pytest.approx(emitted / (0.05 * rounds + 0.01 * drafted))


def test_the_target_alone_is_rated_by_its_own_calls_once_there_were_any():
    draft_statistics, own = taught()
    draft_statistics.learn_plain_step(10, 0.5)
    assert draft_statistics.rates(own)[1] == pytest.approx(1 / 0.05)
    draft_statistics.learn_plain_step(20, 0.9)  # 0.1 s and 0.04 s a token
    assert draft_statistics.rates(own)[1] == pytest.approx(1 / (0.04 + 0.1 / LONGEST_REST))


def test_beyond_a_draft_that_was_kept_whole_more_is_kept_at_the_average_rate():
    draft_statistics = DraftStatistics(4, rated=False)
    own = draft_statistics.own_arms()
    draft_statistics.learn_acceptance(Draft(ids(1, 1), answer=EngineAnswer(ids(1, 1))), 2, own)
    # Known beforehand: 1 of 2. Now 2 of 2 more.
    rate = (SHARED_MEMORY * 1 + 2) / (SHARED_MEMORY * 2 + 2)
    assert own.lengths.tolist() == [1, 2, 3, 4]
    assert own.drafted.tolist() == [1, 2, 3, 4]
    assert own.emitted == pytest.approx([2, 3, 3 + rate, 3 + rate + rate**2])


def test_what_follows_a_rejected_token_decides_nothing():
    draft_statistics = DraftStatistics(4, rated=False)
    own = draft_statistics.own_arms()
    four = Draft(ids(1, 1, 1, 1), answer=EngineAnswer(ids(1, 1, 1, 1)))
    draft_statistics.learn_acceptance(four, 1, own)  # 1 of the 2 that were looked at
    two = Draft(ids(1, 1), answer=EngineAnswer(ids(1, 1)))
    draft_statistics.learn_acceptance(two, 2, draft_statistics.own_arms())
    own = draft_statistics.own_arms()
    draft_statistics.learn_acceptance(two, 2, own)
    once = np.array([1.0, 2.0]) * SHARED_MEMORY + [1, 2]
    kept, decided = (once * SHARED_MEMORY + 2) * SHARED_MEMORY + 2
    rate = kept / decided
    assert own.emitted[-1] == pytest.approx(3 + rate + rate**2)


def test_the_first_rounds_times_are_the_prompts_and_not_learned():
    draft_statistics = DraftStatistics(2, rated=False)
    length = AdaptiveLength(draft_statistics)
    draft = Draft(ids(1, 1), answer=EngineAnswer(ids(1, 1), seconds=0.02))
    length.verified(draft, 1, 9.0)
    assert not draft_statistics.knows_costs
    length.verified(draft, 1, 0.05)
    assert draft_statistics.knows_costs
    assert draft_statistics.rates(draft_statistics.own_arms())[1] == pytest.approx(20)
    assert draft_statistics.arms.rounds == pytest.approx(1 + SHARED_MEMORY)


def test_drafts_that_stop_earning_rest_and_are_tried_again():
    draft_statistics, _ = taught()
    length = AdaptiveLength(draft_statistics)
    assert length.plan(4) == DraftPlan(1)
    draft_statistics.learn_plain_step(10, 0.1)  # alone, it makes 100 tokens a second
    plans = [length.plan(4) for _ in range(4)]
    assert plans == [
        DraftPlan(0, plain_tokens=8),
        DraftPlan(2),
        DraftPlan(0, plain_tokens=16),
        DraftPlan(2),
    ]
    assert length.plan(1) == DraftPlan(0, plain_tokens=32)
    assert length.plan(1) == DraftPlan(1)


def test_decisions_are_recorded():
    world = World(even(0.7), SMALL)
    settings = with_engines(SETTINGS, draft={"stops_when_unsure": True})
    request = Request(
        prompt_ids=ids(1), max_tokens=60, drafter="draft_model", draft_len=AUTO, max_draft_len=16
    )
    draft_statistics = DraftStatistics(16, rated=True)
    decoding = Decoding(
        request, settings, drafter_of(request, settings, Health(), draft_statistics)
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


def test_hybrid_goes_on_asking_the_model_once_the_target_alone_was_timed():
    world = World(even(0.9), SMALL)
    # No match is long enough here: every draft is the model's.
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
    draft_statistics = DraftStatistics(16, rated=True)
    drafter = drafter_of(request, settings, Health(), draft_statistics)
    play(Decoding(request, settings, drafter), world, world)
    assert len(world.drafted) > LENGTH / 17
