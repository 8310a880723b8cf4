"""What every length would have earned in a round, from the one that was verified."""

import numpy as np
import pytest
from scripted import ids

from tandem.bls.arms import OWN_ADVANTAGE, PRIOR_ROUNDS, SHARED_MEMORY, STOP_PROBABILITIES, Arms
from tandem.bls.effects import Draft, EngineAnswer


def drafted(count, log_probs=None):
    tokens = ids(*[1] * count)
    return Draft(tokens, answer=EngineAnswer(tokens, log_probs=log_probs))


def test_a_shorter_draft_is_known_exactly_from_a_longer_one():
    arms = Arms(8, STOP_PROBABILITIES)
    own = arms.of_a_request()
    arms.add(drafted(4, np.log(np.array([0.9, 0.9, 0.5, 0.9], np.float32))), 2, own)
    of = {
        (length, stop): tuple(own.sums[:, at_stop, at_length])
        for at_stop, stop in enumerate(arms.stops)
        for at_length, length in enumerate(arms.lengths)
    }
    assert of[1, 0.0] == (1, 2)
    assert of[4, 0.0] == (4, 3)
    assert of[4, 0.6] == (3, 3)  # 0.9 * 0.9 * 0.5 is less
    assert of[8, 0.0] == (8, 3)  # a longer one would have been rejected there too


def test_a_stop_probability_ends_no_draft_that_stays_likely_enough():
    arms = Arms(8, STOP_PROBABILITIES)
    own = arms.of_a_request()
    arms.add(drafted(2, np.log(np.array([0.55, 0.9], np.float32))), 0, own)
    at = {stop: own.sums[0, number, 3] for number, stop in enumerate(arms.stops)}
    assert at[0.6] == 1
    assert at[0.5] == 2
    assert at[0.4] == 4  # it was not reached: such a draft would have gone on


def test_beyond_a_draft_that_was_kept_whole_more_is_kept_at_the_average_rate():
    arms = Arms(4, (0.0,))
    own = arms.of_a_request()
    arms.add(drafted(2), 2, own)
    # Known beforehand: 1 of 2. Now 2 of 2 more.
    rate = (SHARED_MEMORY * 1 + 2) / (SHARED_MEMORY * 2 + 2)
    assert arms.lengths == [1, 2, 3, 4]
    assert own.sums[0, 0].tolist() == [1, 2, 3, 4]
    assert own.sums[1, 0] == pytest.approx([2, 3, 3 + rate, 3 + rate + rate**2])


def test_no_token_is_taken_for_certain():
    arms = Arms(4, (0.0,), acceptance=1.0)
    own = arms.of_a_request()
    arms.add(drafted(2), 2, own)
    assert own.sums[1, 0, -1] == pytest.approx(3 + 0.99 + 0.99**2)


def test_what_follows_a_rejected_token_decides_nothing():
    arms = Arms(4, (0.0,))
    arms.add(drafted(4), 1, arms.of_a_request())  # 1 of the 2 that were looked at
    arms.add(drafted(2), 2, arms.of_a_request())
    own = arms.of_a_request()
    arms.add(drafted(2), 2, own)
    once = np.array([1.0, 2.0]) * SHARED_MEMORY + [1, 2]
    kept, decided = (once * SHARED_MEMORY + 2) * SHARED_MEMORY + 2
    rate = kept / decided
    assert own.sums[1, 0, -1] == pytest.approx(3 + rate + rate**2)


def test_rates_are_tokens_a_second_by_what_rounds_earned_and_cost():
    arms = Arms(2, (0.0,))
    own = arms.of_a_request()
    arms.add(drafted(2), 1, own)
    for request in (own, arms.of_a_request()):  # one with experience, one that begins
        rates = arms.rates(request, 0.05, 0.01)
        assert rates == pytest.approx(np.array([[2 / 0.06, 2 / 0.07]]))


def test_a_requests_own_rounds_count_beside_what_all_have_learned():
    arms = Arms(2, (0.0,))
    arms.add(drafted(2), 1, arms.of_a_request())
    own = arms.of_a_request()
    own.add(np.array([[[1.0, 2.0]], [[1.0, 1.0]]]))
    emitted, drafts = 1 + 2 * PRIOR_ROUNDS, np.array([[1, 2]]) * (1 + PRIOR_ROUNDS)
    expected = emitted / (0.05 * (1 + PRIOR_ROUNDS) + 0.01 * drafts)
    assert arms.rates(own, 0.05, 0.01) == pytest.approx(expected)


def test_the_best_arm_is_one_that_fits():
    arms = Arms(16, (0.0,), acceptance=0.9, confidence=2)
    own = arms.of_a_request()
    assert arms.best(own, 16, 0.05, 0.001).length == 16
    assert arms.best(own, 9, 0.05, 0.001).length == 9
    assert arms.best(own, 8, 0.05, 0.001).length == 8
    assert arms.best(own, 9, 0.001, 0.05).length == 1
    assert arms.best(own, 1, 0.05, 0.001).length == 1


@pytest.mark.parametrize(("gain", "chosen"), [(0.99 * OWN_ADVANTAGE, 2), (1.01 * OWN_ADVANTAGE, 1)])
def test_a_request_drafts_as_all_do_unless_it_gains_by_another_length(gain, chosen):
    arms = Arms(2, (0.0,))
    arms.add(drafted(2), 2, arms.of_a_request())
    own = arms.of_a_request()
    own.rounds = 1e9
    own.sums[:] = own.rounds * np.array([[[1.0, 2.0]], [[1.0, 1.0]]])  # none is ever accepted
    each = (gain - 1) / (2 - gain)  # of a second: so much does the shorter draft gain here
    best = arms.best(own, 2, 1.0, each)
    assert best.length == chosen
    assert best.rate == pytest.approx(1 / (1 + each * chosen))


def test_what_nobody_has_tried_is_taken_for_what_it_is_said_to_be():
    arms = Arms(4, (0.0,), acceptance=0.5, confidence=2)
    assert arms.emitted(arms.of_a_request(), 2) == pytest.approx(1.75)
    own = arms.of_a_request()
    for _ in range(200):
        arms.add(drafted(2), 0, own)
    assert arms.emitted(own, 2) == pytest.approx(1, abs=0.01)


def test_what_nobody_has_tried_is_told_apart_by_length():
    arms = Arms(4, (0.0,), acceptance=0.5, confidence=2)
    own = arms.of_a_request()
    emitted = [arms.emitted(own, length) for length in (1, 2, 3, 4)]
    assert emitted == pytest.approx([1.5, 1.75, 1.875, 1.9375])


def test_an_arm_promises_what_drafts_of_its_length_earn():
    arms = Arms(16, (0.0,), acceptance=0.9, confidence=2)
    own = arms.of_a_request()
    rates = dict(zip(arms.lengths, arms.rates(own, 0.05, 0.001)[0], strict=True))
    # Of 9 tokens, of which nothing is known, it is what the next longer one earns.
    promised = [arms.best(own, limit, 0.05, 0.001).rate for limit in (7, 8, 9)]
    assert promised == pytest.approx([rates[7], rates[8], rates[10]])


def test_where_more_fits_than_the_longest_draft_the_best_is_what_it_is_where_that_fits():
    arms = Arms(3, (0.0, 0.5))
    arms.add(drafted(3, np.log(np.full(3, 0.9, np.float32))), 3, arms.of_a_request())
    arms.add(drafted(3, np.log(np.full(3, 0.3, np.float32))), 0, arms.of_a_request())
    best = [arms.best(arms.of_a_request(), limit, 0.05, 0.02) for limit in (3, 99)]
    assert best[0] == best[1]
    assert best[0][:2] == (3, 0.5)


@pytest.mark.parametrize("longest", [0, 1])
def test_the_shortest_draft_has_one_token(longest):
    assert Arms(longest, (0.0,)).lengths == [1]


def test_a_length_between_the_shortest_and_the_longest_may_be_best_for_all():
    arms = Arms(4, (0.0,))
    for num_accepted in (2, 3):
        arms.add(drafted(4), num_accepted, arms.of_a_request())
    own = arms.of_a_request()
    own.rounds = 1e9
    own.sums[:] = own.rounds * np.array([[[1.0, 2.0, 3.0, 4.0]], [[2.0, 3.0, 4.0, 5.0]]])
    # Of all, a round has 2, 3, 3.5 or 3.5 tokens. This request would gain by 4, but too little.
    assert arms.best(own, 4, 0.1, 0.09).length == 2


def test_what_a_request_has_learned_outlives_few_of_its_rounds():
    arms = Arms(2, (0.0,))
    own = arms.of_a_request()
    for num_accepted in (2, 0):
        for _ in range(100):
            arms.add(drafted(2), num_accepted, own)
    assert arms.emitted(own, 2) < 1.5
