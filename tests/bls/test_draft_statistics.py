"""What requests learn from rounds, and what trials may cost."""

from dataclasses import replace

import pytest
from taught import drafted, taught

from tandem.bls.draft_length import AdaptiveLength
from tandem.bls.draft_statistics import (
    LEAST_PRICE,
    MOST_SAVED,
    SHARE,
    DraftStatistics,
    TrialBudget,
)
from tandem.bls.effects import StepSeconds


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
