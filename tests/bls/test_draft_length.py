"""Adaptive draft lengths earn what the best fixed one does, or more, in virtual time."""

from dataclasses import replace

import numpy as np
import pytest
from scripted import SETTINGS, Health, ids, play, with_engines
from timed import LENGTH, Text, Times, World, auto, best_fixed, tokens_per_second

from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.draft_length import (
    FIRST_PIECE,
    FIRST_TOKENS,
    KEPT_ROUNDS,
    LEAST_PRICE,
    MOST_SAVED,
    SHARE,
    AdaptiveLength,
    DraftStatistics,
    TrialBudget,
)
from tandem.bls.drafters import drafter_of
from tandem.bls.effects import Draft, DraftPlan, EngineAnswer, StepSeconds
from tandem.bls.load_trials import PIECE, TURN_TOKENS
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
        Decoding(
            request,
            settings,
            drafter_of(request, settings, Health(), draft_statistics),
            clock=lambda: world.seconds,
        ),
        world,
        world,
    )
    return world.seconds


def test_a_load_that_makes_verifying_dear_shortens_the_drafts():
    lengths = {}
    for slope in (0.005, 0.3):
        world = World(even(0.8), Times(0.019554, slope, 0.00113))
        tokens_per_second(world, AUTO)
        lengths[slope] = np.mean(world.drafted)
    assert lengths[0.3] < 0.6 * lengths[0.005]


def test_decisions_are_recorded():
    world = World(even(0.7), SMALL)
    settings = with_engines(SETTINGS, draft={"stops_when_unsure": True})
    request = Request(
        prompt_ids=ids(1), max_tokens=60, drafter="draft_model", draft_len=AUTO, max_draft_len=16
    )
    draft_statistics = DraftStatistics(16, rated=True)
    decoding = Decoding(
        request,
        settings,
        drafter_of(request, settings, Health(), draft_statistics),
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
    play(Decoding(request, settings, drafter, clock=lambda: world.seconds), world, world)
    assert len(world.drafted) > LENGTH / 17


def drafted(*tokens, engine_seconds=0.0):
    return Draft(
        ids(*tokens),
        drafter="draft_model",
        answer=EngineAnswer(ids(*tokens), seconds=engine_seconds, engine_seconds=engine_seconds),
    )


def copied(*tokens, num_matching=2):
    return Draft(ids(*tokens), drafter="prompt_lookup", num_matching=num_matching)


def taught(rounds=4, *, max_draft_len=2, accepted=1):
    """A request whose rounds drafted 2 tokens in 20 ms, and were verified in 50 of 80 ms."""
    draft_statistics = DraftStatistics(max_draft_len, rated=False)
    length = AdaptiveLength(draft_statistics)
    for _ in range(rounds):
        length.verified(drafted(1, 1, engine_seconds=0.02), accepted, StepSeconds(0.08, 0.05))
    return length, draft_statistics


def test_a_round_costs_what_the_wall_clock_says_not_what_the_engines_say():
    draft_statistics = taught()[1]
    choice = draft_statistics.choice(draft_statistics.of_a_request(), 2, 32)
    # One token kept and one of the target's own: 50 ms to verify, 10 on the way, 10 a draft token.
    assert choice.arm == pytest.approx((1, 0.0, 2 / 0.07))


def test_rounds_that_waited_for_branches_do_not_make_drafts_dearer():
    length, draft_statistics = taught()
    own = draft_statistics.of_a_request()
    before = draft_statistics.choice(own, 2, 32).arm
    for _ in range(50):
        late = drafted(1, 1, engine_seconds=0.02)
        length.verified(replace(late, waited=True), 1, StepSeconds(0.3, 0.05))
    assert draft_statistics.choice(own, 2, 32).arm == pytest.approx(before)


def test_the_target_alone_is_guessed_from_its_verifications_until_it_was_timed():
    length, draft_statistics = taught()
    own = draft_statistics.of_a_request()
    assert draft_statistics.choice(own, 2, 32).alone == pytest.approx(1 / (0.05 + 0.01 / 32))
    length.observe_plain_step(8, StepSeconds(0.46, 0.4))  # 50 ms a token, and 60 on the way
    assert draft_statistics.choice(own, 2, 32).alone == pytest.approx(1 / (0.05 + 0.06 / 32))


def test_the_first_steps_times_are_the_prompts_and_not_learned():
    draft_statistics = DraftStatistics(2, rated=False)
    length = AdaptiveLength(draft_statistics)
    length.verified(drafted(1, 1, engine_seconds=0.02), 1, StepSeconds(9.0, 9.0))
    assert not draft_statistics.round_times.known
    assert draft_statistics.drafts.all.rounds == 1
    length.verified(drafted(1, 1, engine_seconds=0.02), 1, StepSeconds(0.08, 0.05))
    assert draft_statistics.round_times.known
    another = AdaptiveLength(draft_statistics)
    another.observe_plain_step(8, StepSeconds(9.0, 9.0))
    assert not draft_statistics.plain_times.known
    another.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert draft_statistics.plain_times.known


def test_drafts_that_nothing_is_known_of_are_of_medium_length():
    length = AdaptiveLength(DraftStatistics(32, rated=True))
    assert length.plan(32) == DraftPlan(FIRST_TOKENS, wants_log_probs=True)
    assert length.plan(3) == DraftPlan(3, wants_log_probs=True)


def test_trials_may_cost_a_share_of_the_time():
    budget = TrialBudget()
    assert not budget.pays(lasts=0.2, worth=0.1)
    budget.earn(0.1 / SHARE)
    assert budget.pays(lasts=0.2, worth=0.1)
    assert not budget.pays(lasts=0.2, worth=0.1)


def test_a_trial_that_promises_as_much_as_the_best_has_a_price_all_the_same():
    budget = TrialBudget()
    assert not budget.pays(lasts=1.0, worth=1.0)
    budget.earn(LEAST_PRICE / SHARE)
    assert budget.pays(lasts=1.0, worth=1.0)
    assert not budget.pays(lasts=1.0, worth=1.0)


def test_what_is_saved_for_trials_is_bounded_but_a_dear_one_is_made_some_time():
    budget = TrialBudget()
    for _ in range(3):
        budget.earn(1e6)
    assert budget.pays(lasts=10 * MOST_SAVED, worth=0.0)
    budget.earn(9 * MOST_SAVED / SHARE)
    assert not budget.pays(lasts=MOST_SAVED / 2, worth=0.0)


def test_nobody_else_samples_the_target_alone_while_one_request_does():
    """All requests used to leave their drafts at once, until the first one was back."""
    draft_statistics = taught(rounds=400)[1]
    others = [AdaptiveLength(draft_statistics) for _ in range(64)]
    for other in others:
        other.verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))  # their prompts
    plans = [other.plan(4) for other in others]
    assert plans.count(DraftPlan(0, plain_tokens=FIRST_PIECE)) == 1


def test_an_arm_is_kept_for_some_rounds():
    length = taught(rounds=KEPT_ROUNDS + 2)[0]
    assert length.plan(4) == DraftPlan(0, plain_tokens=FIRST_PIECE)  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert length.plan(4) == DraftPlan(1)
    length.observe_plain_step(32, StepSeconds(0.032, 0.032))  # alone is far better from now on
    kept = [length.plan(4) for _ in range(KEPT_ROUNDS + 1)]
    assert kept == [DraftPlan(1)] * KEPT_ROUNDS + [DraftPlan(0, plain_tokens=FIRST_PIECE)]


def test_rounds_of_a_kept_arm_are_not_learned_from_once_enough_is_known(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    earned, plans, known = [], [], []
    monkeypatch.setattr(TrialBudget, "earn", lambda _, seconds: earned.append(seconds))
    assert length.plan(1).plain_tokens == FIRST_PIECE  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    while sum(plan.is_kept for plan in plans) < 2 * KEPT_ROUNDS:
        plans.append(length.plan(1))
        draft = drafted(1, engine_seconds=0.01)
        length.verified(replace(draft, plan=plans[-1]), 1, StepSeconds(0.07, 0.05))
        known.append(draft_statistics.drafts.all.rounds)
    assert [plan.is_kept for plan in plans][-KEPT_ROUNDS - 1 :] == [False, *[True] * KEPT_ROUNDS]
    assert len(set(known)) == sum(not plan.is_kept for plan in plans)
    # In both budgets; the time of kept rounds counts with the next round that is learned from.
    assert sum(earned) == pytest.approx(2 * (0.4 + 0.07 * (len(plans) - KEPT_ROUNDS)))


def test_every_round_is_learned_from_until_enough_is_known():
    length, draft_statistics = taught(rounds=KEPT_ROUNDS + 2)
    assert length.plan(1).plain_tokens == FIRST_PIECE  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    plans = [length.plan(1) for _ in range(KEPT_ROUNDS + 1)]
    assert not any(plan.is_kept for plan in plans)
    assert not draft_statistics.settled


class Crowd:
    """Requests side by side, which all do what they are told; each draft slows all the others."""

    def __init__(self, running, *, draft_seconds, plain_seconds):
        self.draft_statistics = DraftStatistics(16, lambda: running, rated=False)
        self.lengths = [AdaptiveLength(self.draft_statistics) for _ in range(running)]
        self.draft_seconds, self.plain_seconds = draft_seconds, plain_seconds
        for length in self.lengths:
            length.verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))  # their prompts

    def round(self):
        """Each does a step; return the plans."""
        plans = [length.plan(4) for length in self.lengths]
        drafting = sum(plan.num_tokens > 0 for plan in plans)
        for plan, length in zip(plans, self.lengths, strict=True):
            if plan.num_tokens:
                seconds = 0.03 + self.draft_seconds * drafting
                draft = drafted(*[1] * plan.num_tokens, engine_seconds=0.01)
                length.verified(
                    replace(draft, plan=plan), plan.num_tokens, StepSeconds(seconds, 0.02)
                )
            else:
                seconds = self.plain_seconds * plan.plain_tokens
                length.observe_plain_step(plan.plain_tokens, StepSeconds(seconds, seconds))
        return plans


@pytest.mark.parametrize(("draft_seconds", "drafts"), [(0.02, False), (0.0005, True)])
def test_sequences_draft_only_where_all_together_gain_by_it(draft_seconds, drafts):
    """One that drafts earns 5 tokens in 50 ms, without it takes 100; all at once take 350."""
    crowd = Crowd(16, draft_seconds=draft_seconds, plain_seconds=0.02)
    for _ in range(12 * TURN_TOKENS):
        plans = crowd.round()
    assert all(bool(plan.num_tokens) == drafts for plan in plans)
    assert crowd.draft_statistics.allows_drafts is drafts


def test_sequences_alone_ask_again_after_a_whole_piece_or_after_a_short_one_in_a_trial():
    crowd = Crowd(16, draft_seconds=0.02, plain_seconds=0.02)
    plans = [plan for _ in range(12 * TURN_TOKENS) for plan in crowd.round()]
    pieces = [plan.plain_tokens for plan in plans if not plan.num_tokens]
    assert set(pieces) == {FIRST_PIECE, PIECE, MOST_TOKENS}
    assert pieces[-1] == MOST_TOKENS


def refusing(monkeypatch, draft_statistics):
    """Have all sequences together be better off without drafts; return what trials are told."""
    told = []
    monkeypatch.setattr(type(draft_statistics), "allows_drafts", False)
    monkeypatch.setattr(
        type(draft_statistics),
        "observe",
        lambda _, tokens, seconds, allowed: told.append((tokens, seconds, allowed)),
    )
    return told


def test_where_no_drafts_are_worth_it_nothing_is_copied_either(monkeypatch):
    length, draft_statistics = taught(max_draft_len=4)
    assert length.allows_drafts()
    assert length.copy(copied(1, 1, 1, 1), 4) == 4
    refusing(monkeypatch, draft_statistics)
    assert not length.allows_drafts()
    assert length.copy(copied(1, 1, 1, 1), 4) == 0


def test_an_arm_is_not_kept_where_no_drafts_are_worth_it_any_more(monkeypatch):
    length, draft_statistics = taught(rounds=KEPT_ROUNDS + 2)
    length.plan(4)  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert length.plan(4) == DraftPlan(1)
    with monkeypatch.context() as patches:
        refusing(patches, draft_statistics)
        assert length.plan(4) == DraftPlan(0, plain_tokens=MOST_TOKENS)
    length.observe_plain_step(32, StepSeconds(0.032, 0.032))  # alone is far better from now on
    assert length.plan(4) == DraftPlan(0, plain_tokens=FIRST_PIECE)


def test_trials_are_told_of_every_round_by_what_it_was_allowed_as_it_began(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    length.plan(4)
    told = refusing(monkeypatch, draft_statistics)
    length.observe_plain_step(8, StepSeconds(0.4, 0.3))
    length.plan(4)
    monkeypatch.setattr(type(draft_statistics), "allows_drafts", True)
    length.verified(drafted(1, 1), 1, StepSeconds(0.2, 0.1))
    plan = length.plan(4)
    length.verified(replace(drafted(1), plan=plan._replace(is_kept=True)), 1, StepSeconds(0.3, 0.1))
    length.verified(replace(drafted(1), drafted_ahead=True), 0, StepSeconds(0.5, 0.1))
    assert told == [(8, 0.4, True), (2, 0.2, False), (2, 0.3, True), (1, 0.5, True)]


def test_trials_are_not_told_of_a_prompts_time(monkeypatch):
    draft_statistics = DraftStatistics(2, rated=False)
    told = refusing(monkeypatch, draft_statistics)
    AdaptiveLength(draft_statistics).verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))
    AdaptiveLength(draft_statistics).observe_plain_step(8, StepSeconds(9.0, 9.0))
    assert told == []


def test_a_branch_says_nothing_of_what_a_call_costs():
    length, draft_statistics = taught()
    rounds = draft_statistics.drafts.all.rounds
    length.verified(replace(drafted(1, 1), drafted_ahead=True), 1, StepSeconds(0.2, 0.1))
    assert draft_statistics.drafts.all.rounds == rounds


def test_drafts_that_stop_earning_rest_for_longer_and_longer():
    draft_statistics = taught()[1]
    length = AdaptiveLength(draft_statistics)
    length.observe_plain_step(8, StepSeconds(1.0, 1.0))  # with the prompt
    length.observe_plain_step(32, StepSeconds(0.32, 0.32))  # 100 tokens a second
    plans = [length.plan(4).plain_tokens for _ in range(4)]
    assert plans == [8, 16, 32, 32]


def test_drafts_that_rest_are_tried_again_as_soon_as_the_time_for_it_is_saved():
    draft_statistics = taught()[1]
    length = AdaptiveLength(draft_statistics)
    length.observe_plain_step(8, StepSeconds(1.0, 1.0))
    length.observe_plain_step(32, StepSeconds(0.32, 0.32))
    plans = play_rounds(length, 400, StepSeconds(0.08, 0.05), draft_seconds=0.02)
    tried = [at for at, plan in enumerate(plans) if plan.num_tokens]
    begun = [at for at in tried if at - 1 not in tried]
    assert tried == sorted(begun + [at + 1 for at in begun])  # two drafts each
    # 50 ms to verify, 10 on the way and 20 to draft, for two tokens that are worth 20.
    assert np.diff(begun) == pytest.approx(2 * 0.06 / SHARE / 0.32, abs=3)
    assert len(begun) >= 3


def play_rounds(length, count, seconds, draft_seconds):
    """Plans, while the target alone brings 100 tokens a second."""
    plans = []
    for _ in range(count):
        plans.append(length.plan(4))
        if plans[-1].num_tokens:
            draft = drafted(1, 1, engine_seconds=draft_seconds)
            length.verified(replace(draft, plan=plans[-1]), 1, seconds)
        else:
            length.observe_plain_step(32, StepSeconds(0.32, 0.32))
    return plans


def test_a_draft_model_that_has_to_catch_up_is_not_taken_for_a_slow_one_but_costs_the_trial():
    draft_statistics = taught()[1]
    before = draft_statistics.round_times.draft(2)
    length = AdaptiveLength(draft_statistics)
    length.observe_plain_step(8, StepSeconds(1.0, 1.0))
    length.verified(drafted(1, 1, engine_seconds=9.0), 1, StepSeconds(9.08, 0.05))
    assert draft_statistics.round_times.draft(2) == pytest.approx(before)
    length.observe_plain_step(32, StepSeconds(0.32, 0.32))
    plans = []
    for _ in range(100):
        plans.append(length.plan(4))
        length.observe_plain_step(32, StepSeconds(0.32, 0.32))
    assert not any(plan.num_tokens for plan in plans)
    length.verified(drafted(1, 1, engine_seconds=0.02), 1, StepSeconds(0.08, 0.05))
    length.verified(drafted(1, 1, engine_seconds=0.04), 1, StepSeconds(0.08, 0.05))
    assert draft_statistics.round_times.draft(2) > before


def test_a_copy_that_earns_more_than_a_draft_is_taken():
    length = taught(max_draft_len=4)[0]
    assert length.copy(copied(1, 1, 1, 1), 4) == 4
    for _ in range(40):
        length.verified(copied(1, 1, 1, 1), 0, StepSeconds(0.06, 0.05))
    assert length.copy(copied(1, 1, 1, 1), 4) == 0
    assert length.copy(copied(1, 1, 1, 1, num_matching=4), 4) == 4  # of those nothing was seen yet


def test_copies_that_were_given_up_are_tried_again():
    length = taught(max_draft_len=4)[0]
    for _ in range(40):
        length.verified(copied(1, 1, 1, 1), 0, StepSeconds(0.06, 0.05))
    taken = []
    for _ in range(100):
        taken.append(length.copy(copied(1, 1, 1, 1), 4))
        length.verified(drafted(1, 1, engine_seconds=0.02), 1, StepSeconds(0.08, 0.05))
    assert 1 <= sum(map(bool, taken)) <= 100 * SHARE * 0.08 / (LEAST_PRICE * 0.06) + 1
