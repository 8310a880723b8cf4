"""What rounds and plain steps take, from the times of those that were."""

import pytest

from tandem.bls.round_times import MOST, LatencyModel, Mean, PlainTimes, RoundTimes


def test_costs_are_learned_from_calls_of_different_length():
    line = LatencyModel(through_zero=False)
    for tokens in (1, 5, 9, 3):
        line.add(tokens, 0.010 + 0.001 * tokens)
    assert line.fit() == pytest.approx((0.010, 0.001))


def test_calls_of_nearly_one_length_show_both_costs():
    line = LatencyModel(through_zero=False)
    for tokens in (4, 5) * 3:
        line.add(tokens, 0.010 + 0.001 * tokens)
    assert line.fit() == pytest.approx((0.010, 0.001))


@pytest.mark.parametrize("through_zero", [True, False])
def test_calls_of_one_length_show_one_cost(through_zero):
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


def test_longer_calls_that_took_less_show_no_cost_below_zero():
    line = LatencyModel(through_zero=False)
    line.add(1, 0.010)
    line.add(5, 0.008)
    assert line.fit() == pytest.approx(((0.99 * 0.010 + 0.008) / 1.99, 0.0))


def test_calls_that_grow_ever_faster_show_no_fixed_cost_below_zero():
    line = LatencyModel(through_zero=False)
    line.add(1, 0.001)
    line.add(2, 0.0025)
    assert line.fit() == pytest.approx((0.0, (0.99 * 0.001 + 2 * 0.0025) / (0.99 + 4)))


def test_one_call_that_hung_does_not_spoil_the_costs():
    line = LatencyModel(through_zero=False)
    for tokens in (1, 5, 9, 3) * 20:
        line.add(tokens, 0.010 + 0.001 * tokens)
    line.add(4, 30.0)
    fixed, each = line.fit()
    assert fixed + 4 * each < 0.020


def test_what_was_learned_of_slow_calls_is_given_up_once_one_is_far_faster():
    line = LatencyModel(through_zero=True)
    for tokens in (1, 5, 9, 3) * 50:
        line.add(tokens, 0.1 * tokens)
    for _ in range(16):
        line.add(4, 0.004)
    assert line.fit()[1] < 4 * 0.001


@pytest.mark.parametrize("running", [1, 16])
def test_a_pause_that_meets_two_calls_of_each_sequence_hardly_counts(running):
    line = LatencyModel(lambda: running, through_zero=True)
    for seconds in [0.004] * 400 + [30.0] * 2 * running + [0.004] * 4:
        line.add(4, seconds)
    assert line.fit()[1] < 2 * 0.001


@pytest.mark.parametrize("running", [1, 16])
def test_more_slow_calls_in_a_row_show_what_they_take(running):
    line = LatencyModel(lambda: running, through_zero=True)
    for seconds in [0.004] * 400 + [0.12] * (2 * running + 16):
        line.add(4, seconds)
    assert line.fit()[1] > 0.8 * 0.03


def test_slow_calls_that_others_come_between_are_no_row():
    line = LatencyModel(through_zero=True)
    for seconds in [0.004] * 400 + [0.12, 0.12, 0.004] * 4:
        line.add(4, seconds)
    assert line.fit()[1] < 2 * 0.001


def test_a_first_call_that_took_no_time_tells_nothing_of_the_next_ones():
    line = LatencyModel(lambda: 64, through_zero=True)
    for seconds in [0.0] + [0.004] * 100:
        line.add(4, seconds)
    assert line.fit()[1] > 0.9 * 0.001


def test_what_was_learned_is_kept_where_calls_are_a_little_faster():
    line = LatencyModel(through_zero=True)
    for _ in range(100):
        line.add(4, 0.4)
    line.add(4, 0.14)  # more than a third
    assert line.fit()[1] > 0.098


def test_a_mean_is_of_what_came_and_an_outlier_counts_for_three_times_it():
    mean = Mean()
    mean.add(0.01)
    assert mean.value == 0.01
    mean.add(30.0)
    assert mean.value == pytest.approx(0.01 * (0.99 + MOST) / 1.99)


def test_a_round_takes_its_engines_seconds_and_the_rest_of_it():
    times = RoundTimes()
    for tokens in (2, 4, 8):
        times.add_draft(tokens, 0.001 * tokens)
        times.add_round("draft_model", tokens, 0.020 + 0.0001 * tokens, 0.003)
    assert times.of_drafts("draft_model") == pytest.approx((0.023, 0.0011))


def test_a_copy_costs_its_verification_alone_and_has_a_way_of_its_own():
    times = RoundTimes()
    for tokens in (2, 4, 8):
        times.add_draft(tokens, 0.001 * tokens)
        times.add_round("draft_model", tokens, 0.020 + 0.0001 * tokens, 0.003)
    assert times.of_copies("prompt_lookup") == pytest.approx((0.023, 0.0001))  # as far as known
    times.add_round("prompt_lookup", 2, 0.0202, 0.001)
    assert times.of_copies("prompt_lookup") == pytest.approx((0.021, 0.0001))


def test_a_round_that_waited_for_branches_says_nothing_of_those_that_do_not():
    times = RoundTimes()
    times.add_draft(4, 0.004)
    times.add_round("draft_model", 4, 0.020, 0.012, waited=True)
    assert times.of_drafts("draft_model")[0] == pytest.approx(0.032)  # as far as known
    times.add_round("draft_model", 4, 0.020, 0.003)
    times.add_round("draft_model", 4, 0.020, 0.012, waited=True)
    assert times.of_drafts("draft_model")[0] == pytest.approx(0.023)


def timed_under_load(running, *, alone=None, rest=0.044, company=1):
    """Rounds of 10 tokens: 0.030 of the target, 0.020 of the draft, and the rest."""
    num_running = company
    times = RoundTimes(lambda: num_running)
    if alone is not None:
        times.add_round("draft_model", 10, 0.029 + 0.001, alone)
    num_running = running
    for tokens in (8, 12) * 2000:
        times.add_draft(tokens, 0.010 + 0.001 * tokens)
        times.add_round("draft_model", tokens, 0.029 + 0.0001 * tokens, rest)
    return times


def test_a_longer_call_of_one_of_many_that_wait_makes_its_round_little_longer():
    times = timed_under_load(64, alone=0.004)
    fixed, each = times.of_drafts("draft_model")
    assert fixed + 10 * each == pytest.approx(0.094, rel=1e-3)  # as long as it was
    assert each == pytest.approx(0.0011 / (1 + 63 * (0.040 / 0.094) ** 2), rel=1e-2)
    fixed, each = times.of_copies("draft_model")
    assert fixed + 10 * each == pytest.approx(0.074, rel=1e-3)
    assert each == pytest.approx(0.0001 / (1 + 63 * (0.040 / 0.074) ** 2), rel=1e-2)


def test_a_round_alone_that_waited_for_branches_waited_for_no_other_sequence():
    num_running = 1
    times = RoundTimes(lambda: num_running)
    times.add_draft(10, 0.020)
    times.add_round("prompt_lookup", 10, 0.030, 0.001)  # a way of its own
    times.add_round("draft_model", 10, 0.030, 0.014, waited=True)
    num_running = 64
    times.add_round("draft_model", 10, 0.030, 0.044)
    waiting = (0.044 - 0.014) / (0.030 + 0.020 + 0.044)
    price = 0.002 / (1 + 63 * waiting**2)
    assert times.of_drafts("draft_model")[1] == pytest.approx(price)
    num_running = 1
    times.add_round("draft_model", 10, 0.030, 0.044)  # waits less for branches than there is to do
    num_running = 64
    assert times.of_drafts("draft_model")[1] == pytest.approx(price)


def test_times_are_told_when_nothing_decodes_any_more():
    running = 1
    times = RoundTimes(lambda: running)
    times.add_round("draft_model", 4, 0.0, 0.0)
    running = 2
    for _ in range(100):
        times.add_round("draft_model", 4, 0.0, 0.010)
    running = 0
    assert times.of_drafts("draft_model")[0] > 0


@pytest.mark.parametrize(
    "times",
    [
        timed_under_load(1, alone=0.004),
        timed_under_load(64),  # what a round takes where nobody waits is not known
        timed_under_load(64, alone=0.004, company=2),  # these may have waited for each other
        timed_under_load(64, alone=0.044),
        timed_under_load(64, alone=0.060),  # nobody waits less than not at all
    ],
)
def test_where_nobody_waits_a_round_gets_as_much_longer_as_its_calls(times):
    fixed, each = times.of_drafts("draft_model")
    assert (fixed, each) == pytest.approx((0.029 + 0.010 + 0.044, 0.0011), rel=1e-2)


def test_a_token_alone_takes_a_step_and_its_part_of_the_calls_way():
    times = PlainTimes()
    times.add(8, 0.160, 0.168)
    assert times.a_token(8) == pytest.approx(0.021)
    assert times.a_token(32) == pytest.approx(0.02025)


def test_what_is_fixed_in_a_call_is_shared_by_its_tokens():
    times = PlainTimes()
    for tokens in (2, 8, 4):
        times.add(tokens, 0.008 + 0.020 * tokens, 0.012 + 0.020 * tokens)
    assert times.a_token(8) == pytest.approx(0.020 + 0.012 / 8)


def test_a_token_alone_is_expected_to_take_the_shortest_way():
    times = RoundTimes()
    for drafter, rest in (("draft_model", 0.005), ("prompt_lookup", 0.001)):
        times.add_round(drafter, 4, 0.020, rest)
    assert times.step(1) == pytest.approx(0.021)


def test_what_takes_no_time_does_not_earn_without_end():
    rounds, alone = RoundTimes(), PlainTimes()
    rounds.add_draft(2, 0.0)
    rounds.add_round("draft_model", 2, 0.0, 0.0)
    alone.add(2, 0.0, 0.0)
    assert rounds.of_drafts("draft_model")[0] > 0
    assert rounds.step(1) > 0
    assert alone.a_token(1) > 0


def test_a_mean_of_times_that_began_with_none_or_less_follows_those_that_come():
    mean = Mean()
    for value in (0.0, -1.0, 0.03):
        mean.add(value)
    assert mean.value == pytest.approx(0.03 / (1 + 0.99 + 0.99**2))


def test_a_draft_models_call_is_expected_to_take_what_others_did():
    times = RoundTimes()
    assert times.draft(4) == 0  # as far as known
    for tokens in (2, 8):
        times.add_draft(tokens, 0.010 + 0.001 * tokens)
        times.add_round("draft_model", tokens, 0.020, 0.003)
    assert times.draft(4) == pytest.approx(0.014)
    assert times.of_drafts("draft_model") == pytest.approx((0.033, 0.001))
