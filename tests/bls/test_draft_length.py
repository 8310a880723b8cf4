"""Draft lengths follow from what is known: which arm, for how long, and when to try another one."""

from dataclasses import replace

import numpy as np
import pytest
from taught import copied, drafted, no_trials, promising, taught

from tandem.bls.arms import Arm
from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.draft_length import (
    ADVANTAGE,
    FIRST_PIECE,
    FIRST_TOKENS,
    KEPT_ROUNDS,
    TRIAL_TOKENS,
    AdaptiveLength,
    FixedLength,
)
from tandem.bls.draft_statistics import (
    LEAST_PRICE,
    SHARE,
    DraftChoice,
    DraftStatistics,
)
from tandem.bls.effects import DraftPlan, StepSeconds


def test_drafts_that_nothing_is_known_of_are_of_medium_length():
    length = AdaptiveLength(DraftStatistics(32, rated=True))
    assert length.plan(32) == DraftPlan(FIRST_TOKENS, wants_log_probs=True)
    assert length.plan(3) == DraftPlan(3, wants_log_probs=True)


def test_nobody_else_samples_the_target_alone_while_one_request_does():
    """All requests used to leave their drafts at once, until the first one was back."""
    draft_statistics = taught(rounds=400)[1]
    others = [AdaptiveLength(draft_statistics) for _ in range(64)]
    for other in others:
        other.verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))  # their prompts
    plans = [other.plan(4) for other in others]
    assert sum(plan.num_tokens == 0 for plan in plans) == 1


@pytest.mark.parametrize(("alone", "tokens"), [(99, FIRST_PIECE), (50, FIRST_PIECE // 2), (1, 1)])
def test_a_sample_of_the_target_alone_is_as_long_as_a_few_tokens_with_drafts(
    monkeypatch, alone, tokens
):
    """Eight by a target that is ten times as slow held an answer up for a sixth of a second."""
    length = taught(rounds=400)[0]
    promising(monkeypatch, alone=alone)
    pays(monkeypatch, "pays_plain")
    assert length.plan(4) == DraftPlan(0, plain_tokens=tokens)


def test_a_draft_that_others_are_drafted_behind_is_as_long_as_is_best_for_these(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    best = DraftChoice(Arm(2, 0.5, 100.0), alone=1.0)
    monkeypatch.setattr(type(draft_statistics), "choice", lambda *_: best)
    no_trials(monkeypatch)
    for ahead, drafts in ((False, [(2, 0.5), (1, 0.5)]), (True, [(4, 0.0), (1, 0.0)])) * 2:
        plans = [length.plan(limit, ahead=ahead) for limit in (4, 1)]
        assert [plan[:2] for plan in plans] == drafts
        assert [plan.is_kept for plan in plans] == [False, True]  # an arm of its own


def test_a_trial_is_as_long_as_it_would_be_if_nothing_were_drafted_behind_it(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    best = DraftChoice(Arm(1, 0.0, 1.0), alone=100.0)
    monkeypatch.setattr(type(draft_statistics), "choice", lambda *_: best)
    monkeypatch.setattr(type(draft_statistics), "pays_draft", lambda *_, **__: True)
    for _ in range(2):  # behind the first one the draft model has caught up
        plan = length.plan(4, ahead=True)
        assert plan.on_trial
        assert plan[:2] == (TRIAL_TOKENS, 0.0)


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
    assert length.copy_length(copied(1, 1, 1, 1), 4) == 4
    for _ in range(40):
        length.verified(copied(1, 1, 1, 1), 0, StepSeconds(0.06, 0.05))
    assert length.copy_length(copied(1, 1, 1, 1), 4) == 0
    # Of those nothing was seen yet.
    assert length.copy_length(copied(1, 1, 1, 1, num_matching=4), 4) == 4


def test_copies_that_were_given_up_are_tried_again():
    length = taught(max_draft_len=4)[0]
    for _ in range(40):
        length.verified(copied(1, 1, 1, 1), 0, StepSeconds(0.06, 0.05))
    taken = []
    for _ in range(100):
        taken.append(length.copy_length(copied(1, 1, 1, 1), 4))
        length.verified(drafted(1, 1, engine_seconds=0.02), 1, StepSeconds(0.08, 0.05))
    assert 1 <= sum(map(bool, taken)) <= 100 * SHARE * 0.08 / (LEAST_PRICE * 0.06) + 1


def test_a_fixed_length_drafts_what_fits_and_takes_copies_whole():
    length = FixedLength(4)
    assert [length.plan(limit, ahead=ahead) for limit in (3, 9) for ahead in (False, True)] == [
        *[DraftPlan(3)] * 2,
        *[DraftPlan(4)] * 2,
    ]
    assert length.copy_length(copied(1, 1, 1, 1, 1), 9) == 5
    assert length.allows_drafts()


def pays(monkeypatch, *trials):
    """Have the time for such trials be saved."""
    for trial in trials:
        monkeypatch.setattr(DraftStatistics, trial, lambda *_, **__: True)


def test_the_target_goes_on_alone_once_it_is_clearly_better(monkeypatch):
    draft_statistics = taught(rounds=400)[1]
    no_trials(monkeypatch)
    promising(monkeypatch, alone=100 * (ADVANTAGE - 0.01))
    assert AdaptiveLength(draft_statistics).plan(4).num_tokens == 2
    promising(monkeypatch, alone=100 * (ADVANTAGE + 0.01))
    assert AdaptiveLength(draft_statistics).plan(4).plain_tokens == FIRST_PIECE


def test_nothing_is_drafted_behind_a_target_that_goes_on_alone(monkeypatch):
    length = taught(rounds=400)[0]
    no_trials(monkeypatch)
    promising(monkeypatch, alone=200)
    assert length.plan(4, ahead=True) == DraftPlan(0, plain_tokens=FIRST_PIECE)


def test_pieces_that_a_request_chose_itself_are_no_longer_in_a_trial_than_those_of_others(
    monkeypatch,
):
    """Longer ones made drafts look better that nobody made: without them pieces are short."""
    length, draft_statistics = taught(rounds=400)
    no_trials(monkeypatch)
    promising(monkeypatch, alone=200)
    monkeypatch.setattr(type(draft_statistics), "longest_piece", 2 * FIRST_PIECE)
    pieces = [length.plan(4).plain_tokens for _ in range(4)]
    assert pieces == [FIRST_PIECE, 2 * FIRST_PIECE, 2 * FIRST_PIECE, 2 * FIRST_PIECE]


def test_drafts_that_earned_again_rest_for_a_short_time_first(monkeypatch):
    length = taught(rounds=400)[0]
    no_trials(monkeypatch)
    plans = []
    for alone in (200, 200, 1, 200):
        promising(monkeypatch, alone=alone)
        plans += [length.plan(4) for _ in range(1 if alone > 100 else 1 + KEPT_ROUNDS)]
    rests = [plan.plain_tokens for plan in plans if not plan.num_tokens]
    assert rests == [FIRST_PIECE, 2 * FIRST_PIECE, FIRST_PIECE]


@pytest.mark.parametrize("alone", [1, 200])
def test_nothing_is_tried_in_a_round_whose_time_is_that_of_the_prompt(monkeypatch, alone):
    draft_statistics = taught(rounds=400)[1]
    promising(monkeypatch, alone=alone)
    pays(monkeypatch, "pays_plain")
    if alone > 1:
        pays(monkeypatch, "pays_draft")
    else:
        monkeypatch.setattr(DraftStatistics, "pays_draft", lambda *_, **__: False)
    length = AdaptiveLength(draft_statistics)
    assert bool(length.plan(4).num_tokens) is (alone == 1)
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert bool(length.plan(4).num_tokens) is (alone > 1)


def test_the_longest_draft_that_fits_is_tried_where_shorter_ones_are_best(monkeypatch):
    draft_statistics = taught(max_draft_len=8)[1]
    no_trials(monkeypatch)
    pays(monkeypatch, "pays_draft")
    promising(monkeypatch, alone=1)
    plans = [AdaptiveLength(draft_statistics).plan(limit) for limit in (5, 99)]
    assert plans == [DraftPlan(5), DraftPlan(8)]


def test_drafts_that_rest_are_tried_by_their_best_length_or_what_fits(monkeypatch):
    draft_statistics = taught(max_draft_len=8)[1]
    pays(monkeypatch, "pays_draft")
    promising(monkeypatch, alone=200, length=6)
    plans = []
    for limit in (8, 5, 1):
        length = AdaptiveLength(draft_statistics)
        length.observe_plain_step(8, StepSeconds(0.4, 0.4))
        plans.append(length.plan(limit))
    assert plans == [DraftPlan(count, on_trial=True) for count in (6, 5, 1)]


def test_a_request_whose_drafts_stop_earning_makes_no_trial_that_is_not_saved_for(monkeypatch):
    length = taught(rounds=400)[0]
    no_trials(monkeypatch)
    promising(monkeypatch, alone=200)
    assert not length.plan(4).num_tokens


@pytest.mark.parametrize("before", ["copy", "plain step"])
def test_a_model_that_others_drafted_instead_of_has_to_catch_up(before):
    """What it takes then says nothing of its drafts."""
    fresh, draft_statistics = taught()
    expected = draft_statistics.round_times.draft(2)
    if before == "copy":
        fresh = AdaptiveLength(draft_statistics)
        fresh.verified(copied(1, 1), 1, StepSeconds(9.0, 9.0))  # with the prompt
    else:
        fresh.observe_plain_step(32, StepSeconds(0.32, 0.32))
    fresh.verified(drafted(1, 1, engine_seconds=9.0), 1, StepSeconds(9.08, 0.05))
    assert draft_statistics.round_times.draft(2) == pytest.approx(expected)


def test_a_copy_is_taken_whole_while_nothing_is_known_of_drafts():
    length = AdaptiveLength(DraftStatistics(4, rated=False))
    assert length.copy_length(copied(1, 1, 1, 1), 4) == 4


def pieces(monkeypatch):
    """The pieces that the target alone is judged by."""
    seen = []
    best = DraftChoice(Arm(2, 0.0, 100.0), alone=200.0)
    monkeypatch.setattr(
        DraftStatistics, "choice", lambda _, own, limit, piece: seen.append(piece) or best
    )
    return seen


@pytest.mark.parametrize(
    ("calls", "piece"), [((8,), MOST_TOKENS), ((5, 3), 5), ((2, 2, 2, 2), 2), ((0, 8), MOST_TOKENS)]
)
def test_the_target_alone_is_judged_by_the_pieces_that_it_decodes_in(monkeypatch, calls, piece):
    """Somebody who reads along has them shorter."""
    length, seen = taught(rounds=400)[0], pieces(monkeypatch)
    no_trials(monkeypatch)
    assert length.plan(4).plain_tokens == sum(calls)
    for num_tokens in calls:
        length.observe_plain_step(num_tokens, StepSeconds(0.4, 0.4))
    length.plan(4)
    assert seen[-1] == piece
