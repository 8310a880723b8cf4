"""An arm is kept for some rounds, and once enough is known few of them are learned from."""

from dataclasses import replace

import pytest
from taught import drafted, no_trials, promising, taught

from tandem.bls.draft_length import FIRST_PIECE, KEPT_AT_FIRST, KEPT_ROUNDS, AdaptiveLength
from tandem.bls.draft_statistics import MOST_IN_TURN, DraftStatistics, TrialBudget
from tandem.bls.effects import DraftPlan, StepSeconds


def test_an_arm_is_kept_for_some_rounds():
    length, draft_statistics = taught(rounds=KEPT_AT_FIRST + 2)
    assert not length.plan(4).num_tokens  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert length.plan(4) == DraftPlan(1)
    draft_statistics.learn_plain_step(32, StepSeconds(0.032, 0.032))  # alone is far better
    kept = [length.plan(4) for _ in range(KEPT_AT_FIRST + 1)]
    assert kept == [DraftPlan(1)] * KEPT_AT_FIRST + [DraftPlan(0, plain_tokens=FIRST_PIECE)]


def test_rounds_of_a_kept_arm_are_not_learned_from_once_enough_is_known(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    earned, plans, known = [], [], []
    monkeypatch.setattr(TrialBudget, "earn", lambda _, seconds: earned.append(seconds))
    assert not length.plan(1).num_tokens  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    while sum(plan.is_kept for plan in plans) < 3 * KEPT_ROUNDS:
        plans.append(length.plan(1))
        draft = drafted(1, engine_seconds=0.01)
        length.verified(replace(draft, plan=plans[-1]), 1, StepSeconds(0.07, 0.05))
        known.append(draft_statistics.drafts.all.rounds)
    assert [plan.is_kept for plan in plans][-KEPT_ROUNDS - 1 :] == [False, *[True] * KEPT_ROUNDS]
    assert len(set(known)) == sum(not plan.is_kept for plan in plans)
    # In both budgets; the time of kept rounds counts with the next round that is learned from.
    assert sum(earned) == pytest.approx(2 * (0.4 + 0.07 * (len(plans) - KEPT_ROUNDS)))


def test_a_new_request_keeps_its_arm_once_its_second_round_has_told_what_rounds_take(
    monkeypatch,
):
    """Where all answers are short, to learn from each of their rounds took a tenth of the speed."""
    draft_statistics = taught(rounds=400)[1]
    no_trials(monkeypatch)
    length, plans = AdaptiveLength(draft_statistics), []
    for _ in range(2 + KEPT_ROUNDS + 1):
        plans.append(length.plan(4))
        length.verified(replace(drafted(1), plan=plans[-1]), 1, StepSeconds(0.07, 0.05))
    assert [plan.is_kept for plan in plans] == [False, False, *[True] * KEPT_ROUNDS, False]


@pytest.mark.parametrize(("running", "learning"), [(0, 16), (1, 16), (4, 4), (64, 2)])
def test_of_many_new_requests_some_learn_from_their_second_round(monkeypatch, running, learning):
    """All did, and in answers of five rounds that took a processor's time for two of them."""
    draft_statistics = taught(rounds=400)[1]
    monkeypatch.setattr(draft_statistics, "_running", lambda: running)
    monkeypatch.setattr(DraftStatistics, "allows_drafts", True)
    no_trials(monkeypatch)
    kept = []
    for _ in range(2 * MOST_IN_TURN):
        length, plans = AdaptiveLength(draft_statistics), []
        for _ in range(1 + KEPT_ROUNDS):
            plans.append(length.plan(4))
            length.verified(replace(drafted(1), plan=plans[-1]), 1, StepSeconds(0.07, 0.05))
        kept.append([plan.is_kept for plan in plans])
    later = [False, *[True] * KEPT_ROUNDS]
    at_once = [False, *later[:-1]]
    assert kept.count(at_once) == learning
    assert kept.count(later) == 2 * MOST_IN_TURN - learning


@pytest.mark.parametrize(("running", "turns"), [(1, 1), (31, 1), (32, 2), (64, 4), (500, 4)])
def test_of_many_sequences_not_every_choice_is_learned_from(monkeypatch, running, turns):
    """To ask for probabilities and to learn from them takes a processor's time, which all share."""
    draft_statistics = taught(rounds=400)[1]
    draft_statistics.rated = True
    monkeypatch.setattr(draft_statistics, "_running", lambda: running)
    monkeypatch.setattr(DraftStatistics, "allows_drafts", True)
    no_trials(monkeypatch)
    length, choices, learned = AdaptiveLength(draft_statistics), 1 + 4 * turns, 0
    for number in range(choices * (1 + KEPT_ROUNDS)):
        plan = length.plan(4)
        assert plan.wants_log_probs is not plan.is_kept
        learned += number > 1 and not plan.is_kept
        length.verified(replace(drafted(1), plan=plan), 1, StepSeconds(0.07, 0.05))
    assert learned == (choices - 1) / turns


def test_an_arm_is_not_kept_once_a_draft_by_it_was_all_wrong(monkeypatch):
    draft_statistics = taught(rounds=400)[1]
    no_trials(monkeypatch)
    length, plans = AdaptiveLength(draft_statistics), []
    for num_accepted in (1, 1, 1, 0, 1):
        plans.append(length.plan(4))
        draft = replace(drafted(1), plan=plans[-1])
        length.verified(draft, num_accepted, StepSeconds(0.07, 0.05))
    assert [plan.is_kept for plan in plans] == [False, False, True, True, False]


def test_every_round_is_learned_from_until_enough_is_known():
    length, draft_statistics = taught(rounds=KEPT_AT_FIRST + 2)
    assert not length.plan(1).num_tokens  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    plans = [length.plan(1) for _ in range(KEPT_AT_FIRST + 1)]
    assert not any(plan.is_kept for plan in plans)
    assert not draft_statistics.settled


def test_a_request_that_begins_without_drafts_keeps_its_arm_as_others_do(monkeypatch):
    length = AdaptiveLength(taught(rounds=400)[1])
    no_trials(monkeypatch)
    promising(monkeypatch, alone=1)
    length.observe_plain_step(8, StepSeconds(9.0, 9.0))  # with the prompt
    assert [length.plan(4).is_kept for _ in range(2)] == [False, True]


def test_the_first_rounds_of_a_request_follow_each_choice_until_enough_is_known(monkeypatch):
    length, plans = AdaptiveLength(taught(max_draft_len=16)[1]), []
    no_trials(monkeypatch)
    for best in range(1, 2 * KEPT_AT_FIRST + 3):
        promising(monkeypatch, alone=1, length=best)
        plans.append(length.plan(16))
        draft = replace(drafted(*[1] * plans[-1].num_tokens), plan=plans[-1])
        length.verified(draft, 1, StepSeconds(0.08, 0.05))
    first = KEPT_AT_FIRST + 1
    assert [plan.num_tokens for plan in plans] == [*range(1, first + 1)] + [first + 1] * first
