"""A load has trials of its own, which end and go on with it."""

from itertools import groupby

import pytest
from trials import EACH, TOKENS, Sequences, new_trials, try_both

from tandem.bls.load_trials import PATIENCE, TRIAL_TURNS, TURN_TOKENS


def test_loads_are_told_apart_but_not_those_that_differ_by_one_sequence():
    trials = new_trials(first=False)
    try_both(trials, 2, with_it=5, without=4)
    try_both(trials, 4, with_it=4, without=5)
    try_both(trials, 16, with_it=5, without=4)
    try_both(trials, 64, with_it=4, without=5)
    ways = {running: trials.allow(running) for running in (2, 3, 4, 5, 15, 16, 17, 63, 64, 65)}
    assert [running for running, way in ways.items() if way] == [2, 15, 16, 17]


def under(running, *, better):
    """Sequences in the turn of a trial that does not go the better way."""
    sequences = Sequences(running, with_it=110 if better else 90, without=100, first=better)
    sequences.stay()
    assert sequences.on_trial
    assert sequences.trials.allow(running) is not better
    return sequences


@pytest.mark.parametrize("left_for", [2, 64])
@pytest.mark.parametrize("better", [True, False])
def test_who_comes_back_to_a_load_that_was_left_in_a_trial_goes_the_better_way(better, left_for):
    """A burst of requests passed through the loads of the last one's end, and met its turns."""
    sequences = under(16, better=better)
    sequences.trials.allow(left_for)
    assert sequences.trials.allow(16) is better
    assert sequences.stay() >= EACH  # of each sequence, before the other way is tried again


@pytest.mark.parametrize("running", [2, 3, 4, 5, 16])
@pytest.mark.parametrize("better", [True, False])
def test_a_load_has_ended_once_one_sequence_is_left(better, running):
    sequences = under(running, better=better)
    assert sequences.trials.allow(1)
    assert sequences.trials.allow(running) is better


@pytest.mark.parametrize("times_left", [1, 2, 5])
def test_a_trial_goes_on_where_its_load_comes_and_goes(times_left):
    sequences = under(16, better=True)
    sequences.rates = {True: 90, False: 100}  # it only was taken for the better one
    for _ in range(times_left):
        sequences.trials.allow(64)
        sequences.stay()
    ways = []
    while sequences.on_trial:
        ways.append(sequences.trials.allow(16))
        sequences.round()
    turns = [way for way, _ in groupby(ways)]
    assert turns == [False, True, False, True, False]  # of each way as many as if nobody had left
    assert sequences.trials.allow(16) is False


@pytest.mark.parametrize("better", [True, False])
@pytest.mark.parametrize("each", [8, 12, 16, 32, 48, 64, 96, 128])
def test_a_trial_ends_where_all_bursts_are_short(each, better):
    """Each of them would begin its turn anew, and the worse way be kept for ever."""
    tokens = 4  # of a round: bursts end as waits do
    trials = new_trials(first=not better)  # what is taken for the better way is not
    for _ in range(6400 // each):
        trials.allow(2)
        ways = [trials.allow(16)] * 16
        for number in range(16 * each // tokens):
            way = ways[number % 16]
            trials.observe(16, tokens, 1.0 if way is better else 1.4, allowed=way)
            ways[number % 16] = trials.allow(16)
    trials.allow(2)
    assert trials.allow(16) is better
    assert not trials.on_trial(16)


def test_a_wait_goes_on_where_its_load_is_left_again():
    sequences = under(16, better=True)
    sequences.trials.allow(64)
    for _ in range(16 * EACH // 2 // TOKENS):
        sequences.round()
        assert sequences.trials.allow(16)
    sequences.trials.allow(64)
    assert EACH // 2 <= sequences.stay() <= EACH // 2 + PATIENCE + TOKENS
    assert not sequences.trials.allow(16)


def test_each_wait_for_a_turn_that_is_left_again_is_half_as_long():
    """Nor does it wait for those who were late in the turn."""
    sequences, waits = under(16, better=True), []
    for _ in range(5):
        sequences.trials.allow(64)
        sequences.trials.allow(16)
        began = sequences.now
        while not sequences.on_trial:
            sequences.round()
        waits.append((sequences.now - began) * TOKENS / 16)
    expected = [EACH / 2**number for number in range(5)]
    assert waits == pytest.approx(expected, abs=2 * TOKENS)


@pytest.mark.parametrize("times_left", [0, 1, 5])
def test_a_hopeless_turn_is_as_short_after_its_load_was_left(times_left):
    """What the better way earns meanwhile is no part of the trial."""
    sequences = under(16, better=True)
    sequences.rates = {True: 100, False: 10}
    for _ in range(times_left):
        sequences.trials.allow(64)
        sequences.stay()
    assert sequences.stay() < TURN_TOKENS


@pytest.mark.parametrize("bound", [2, 5, 11, 22])
def test_a_load_at_a_bound_is_one_load(bound):
    """Each of two would have its turns, and every sequence that came or went would end them."""
    trials, ways = new_trials(first=True), set()
    for number in range(bound * (EACH + 2 * TRIAL_TURNS * 2 * TURN_TOKENS)):
        running = bound + number % 2
        ways.add(allowed := trials.allow(running))
        trials.observe(running, 4 if allowed else 5, 1.0, allowed=allowed)
        assert trials.allow(bound + 1) is trials.allow(bound)
    assert ways == {True, False}
    assert not trials.allow(bound)


def test_a_load_ends_once_fewer_than_half_as_many_decode_or_more():
    trials = new_trials(first=True)
    try_both(trials, 4, with_it=5, without=4)
    try_both(trials, 8, with_it=4, without=5)
    assert [trials.allow(running) for running in (5, 4, 3, 4, 5, 6)] == [
        False,
        False,
        *[True] * 3,
        False,
    ]


@pytest.mark.parametrize("first", [True, False])
def test_under_a_new_load_that_way_comes_first_which_is_better_under_the_nearest(first):
    trials = new_trials(first=first)
    assert trials.allow(16) is first  # nothing is known
    try_both(trials, 2, with_it=5, without=4)
    assert trials.allow(8)
    try_both(trials, 32, with_it=4, without=5)
    assert not trials.allow(64)
    assert trials.allow(4)


@pytest.mark.parametrize("first", [True, False])
def test_that_way_comes_first_also_where_others_passed_through_before(first):
    """Each burst passes through all smaller loads, before anything is known of any."""
    trials = new_trials(first=first)
    for running in range(1, 17):
        trials.allow(running)
    better, worse = (5, 4) if not first else (4, 5)
    try_both(trials, 16, with_it=better, without=worse)
    assert [trials.allow(running) for running in (2, 5, 8)] == [not first] * 3


def test_what_is_known_of_a_load_stays_though_it_is_another_way_under_the_nearest():
    trials = new_trials(first=True)
    try_both(trials, 4, with_it=5, without=4)
    try_both(trials, 16, with_it=4, without=5)
    trials.allow(1)
    assert trials.allow(4)


def test_a_trial_that_was_left_keeps_what_was_taken_for_the_better_way():
    sequences = under(4, better=True)
    try_both(sequences.trials, 16, with_it=4, without=5)
    sequences.trials.allow(1)
    assert sequences.trials.allow(4)
