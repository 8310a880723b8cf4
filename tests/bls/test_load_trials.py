"""What pays under load is found out by trying it with all sequences; that costs very little."""

from __future__ import annotations

import math

import pytest
from trials import EACH, TOKENS, Sequences, new_trials

from tandem.bls.load_trials import (
    FIRST_TOKENS,
    HOPELESS,
    IN_VAIN,
    KEPT_TOKENS,
    MOST_TOLD,
    PATIENCE,
    PIECE,
    SURE,
    TRIAL_TURNS,
    TURN_TOKENS,
    LoadTrials,
)


def test_a_sequence_alone_goes_this_way_whatever_was_measured():
    trials = new_trials(first=False)
    for _ in range(1000):
        trials.observe(1, 1, 1.0, allowed=True)
        trials.observe(1, 100, 1.0, allowed=False)
    assert trials.allow(1)
    assert trials.longest_piece(1, 99) == 99


def test_tokens_of_rounds_of_which_nothing_else_is_told_bring_the_first_trial_nearer():
    trials = new_trials(first=True)
    trials.count(2, 2 * EACH)  # of a load that nobody knows
    trials.allow(2)
    trials.count(2, 2 * EACH)  # before its first round
    trials.observe(2, TOKENS, 1.0, allowed=True)
    trials.count(1, 2 * EACH)  # of one alone
    trials.observe(2, TOKENS, 1.0, allowed=True)
    trials.count(2, 2 * EACH - 3 * TOKENS)
    assert not trials.on_trial(2)
    trials.observe(2, TOKENS, 1.0, allowed=True)
    assert trials.on_trial(2)


def test_tokens_of_rounds_of_which_nothing_else_is_told_belong_to_no_turn():
    told, counted = (Sequences(4, with_it=100, without=50, first=True) for _ in range(2))
    for sequences in (told, counted):
        counted.trials.count(4, 4 * TURN_TOKENS)
        sequences.stay()
    assert told.now == counted.now


def test_what_is_to_be_counted_in_a_turn_has_to_be_observed():
    sequences = Sequences(4, with_it=100, without=50, first=True)
    assert not sequences.trials.count(4, TOKENS)
    assert sequences.trials.count(1, TOKENS)
    sequences.end_trial()
    assert sequences.trials.count(4, TOKENS)


@pytest.mark.parametrize("running", [2, 16])
@pytest.mark.parametrize("first", [True, False])
def test_under_a_load_that_lasts_for_moments_nothing_is_tried(running, first):
    trials, rounds = new_trials(first=first), EACH * running // TOKENS
    for _ in range(rounds):
        assert trials.longest_piece(running, 32) == 32
        trials.observe(running, TOKENS, 1.0, allowed=first)
    trials.observe(running, TOKENS, 1.0, allowed=first)
    assert trials.longest_piece(running, 32) == PIECE


@pytest.mark.parametrize("running", [2, 4, 16])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("with_it", [90, 110])
def test_both_ways_have_their_turns_and_the_better_one_is_kept(running, first, with_it):
    sequences = Sequences(running, with_it=with_it, without=100, first=first)
    assert sequences.trials.allow(running) is first
    turns, better, _ = sequences.try_both()
    assert better is (with_it > 100)
    # The last turn and the time of the better way pass as one, where the better way had that turn.
    assert turns == 2 * TRIAL_TURNS - (better is not first)


@pytest.mark.parametrize("running", [2, 4, 16])
@pytest.mark.parametrize("first", [True, False])
def test_a_way_that_is_far_behind_has_one_turn(running, first):
    sequences = Sequences(running, with_it=50, without=100, first=first)
    assert sequences.stay() == pytest.approx(TURN_TOKENS, abs=2 * TOKENS)
    assert sequences.try_both()[1] is False
    assert sequences.stay() == pytest.approx(TURN_TOKENS, abs=3 * TOKENS)  # the next trial


@pytest.mark.parametrize("first", [True, False])
def test_a_way_that_is_hopeless_is_left_before_its_turn_is_over(first):
    """Where the other way brings ten tokens meanwhile, 40 by this one are seconds for everybody."""
    with_it, without = (100, 10) if first else (10, 100)
    sequences = Sequences(16, with_it=with_it, without=without, first=first)
    assert sequences.stay() == pytest.approx(TURN_TOKENS, abs=2 * TOKENS)
    expected = TURN_TOKENS / 10  # in the time that the other way had
    assert sequences.stay() == pytest.approx(expected, abs=3 * TOKENS)
    assert not sequences.on_trial
    assert sequences.trials.allow(16) is first


@pytest.mark.parametrize("rate", [HOPELESS * 100 - 5, HOPELESS * 100 + 5])
def test_a_turn_is_over_early_only_where_its_way_is_hopeless(rate):
    sequences = Sequences(16, with_it=100, without=rate, first=True)
    sequences.stay()
    stayed = sequences.stay()
    if rate < HOPELESS * 100:
        assert stayed < TURN_TOKENS * HOPELESS + 3 * TOKENS
    else:
        assert stayed == pytest.approx(TURN_TOKENS, abs=3 * TOKENS)


@pytest.mark.parametrize(("running", "tokens"), [(2, FIRST_TOKENS), (64, 64 * 20)])
def test_a_trial_begins_after_some_tokens_of_all_together_and_so_many_of_each(running, tokens):
    trials = LoadTrials(first=True, first_of_each=20)
    trials.observe(running, tokens - 1, 1.0, allowed=True)
    assert not trials.on_trial(running)
    trials.observe(running, 1, 1.0, allowed=True)
    assert trials.on_trial(running)


@pytest.mark.parametrize("turn_rounds", [1, 6])
def test_a_turn_may_last_some_rounds_however_long_their_drafts_are(turn_rounds):
    """Of drafts of 32 tokens, 40 tokens are one round, in which nothing of a new way is felt."""
    trials = LoadTrials(first=False, first_of_each=EACH, turn_rounds=turn_rounds)
    trials.observe(2, 2 * EACH, 1.0, allowed=False)
    rounds = max(math.ceil(2 * TURN_TOKENS / 33), 2 * turn_rounds)
    assert turn(trials, 2, allowed=False, tokens=33) == rounds
    assert turn(trials, 2, allowed=True, tokens=33) >= rounds


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("with_it", [100, 101])
def test_a_way_that_gains_nothing_is_left(first, with_it):
    """Where every draft is wrong, each request decodes alone in the end, but tries again."""
    assert Sequences(16, with_it=with_it, without=100, first=first).try_both()[1] is False


def test_what_is_clearly_better_is_kept_for_longer():
    small, large = (Sequences(4, with_it=rate, without=100).try_both()[2] for rate in (98, 85))
    assert small == pytest.approx(KEPT_TOKENS, rel=0.1)
    assert large == pytest.approx(KEPT_TOKENS * -math.log(0.85) / SURE, rel=0.1)


def test_one_trial_in_which_the_machine_stood_still_is_soon_forgotten():
    sequences = Sequences(4, with_it=1, without=100)
    most = KEPT_TOKENS * MOST_TOLD / SURE
    assert sequences.try_both()[2] == pytest.approx(most, rel=0.1)
    sequences.rates[True] = 130
    assert sequences.try_both()[1] is True


def test_a_way_that_has_become_better_is_found_by_one_of_the_next_trials():
    sequences = Sequences(4, with_it=90, without=100)
    assert sequences.try_both()[1] is False
    sequences.rates[True] = 103
    assert sequences.try_both()[1] is False  # not certain yet
    while not sequences.try_both()[1]:
        assert sequences.now * TOKENS < 4 * 10 * KEPT_TOKENS


def test_a_machine_that_becomes_slower_or_faster_makes_no_way_better():
    """What the ways earned in other times is not held against each other."""
    sequences = Sequences(4, with_it=90, without=100)
    for factor in (0.5, 3.0, 0.2):
        sequences.rates = {way: factor * rate for way, rate in sequences.rates.items()}
        assert sequences.try_both()[1] is False
        sequences.end_trial()


@pytest.mark.parametrize("with_it", [30, 79, 95, 105, 130, 400])
def test_trying_costs_less_than_one_hundredth(with_it):
    sequences = Sequences(8, with_it=with_it, without=100)
    sequences.try_both()
    sequences.tokens.clear()
    sequences.seconds.clear()
    for _ in range(5):
        sequences.try_both()
    rate = sequences.tokens.total() / sequences.seconds.total()
    assert rate > 0.99 * max(with_it, 100)


def test_pieces_are_short_while_a_trial_lasts():
    assert new_trials(first=False).longest_piece(4, 32) == 32
    sequences = Sequences(4, with_it=50, without=100)
    assert sequences.trials.longest_piece(4, 32) == PIECE
    assert sequences.trials.longest_piece(4, 3) == 3
    sequences.try_both()  # and the next one has begun
    assert sequences.trials.longest_piece(4, 32) == PIECE
    sequences.end_trial()
    assert sequences.trials.longest_piece(4, 32) == 32


def test_one_that_is_alone_meanwhile_has_its_whole_piece():
    sequences = Sequences(2, with_it=50, without=100)
    assert sequences.trials.longest_piece(1, 32) == 32
    assert sequences.trials.longest_piece(2, 32) == PIECE


def test_tokens_whose_time_says_nothing_make_no_way_better():
    """Those of prompts: where drafts are made, a first call brings fewer of them."""
    trials = new_trials(first=True)
    for _ in range(2 * (EACH + 2 * TRIAL_TURNS * (TURN_TOKENS + PATIENCE))):
        allowed = trials.allow(4)
        trials.observe(4, 2 if allowed else PIECE, 0.0, allowed=allowed)
        trials.observe(4, 5 if allowed else 4, 1.0, allowed=allowed)
    assert trials.allow(4)


def begun(running):
    """Trials whose first turn, without the way, has begun."""
    trials = new_trials(first=False)
    trials.observe(running, EACH * running, 1.0, allowed=False)
    return trials


def turn(trials, running, *, allowed, tokens, late=0):
    """Rounds of a turn, until the other one begins; first some of those that are late."""
    for _ in range(late):
        trials.observe(running, 1000, 1.0, allowed=not allowed)
    rounds = 0
    while trials.allow(running) is allowed:
        trials.observe(running, tokens, 1.0, allowed=allowed)
        rounds += 1
        if rounds > running * (PATIENCE + TURN_TOKENS):
            break  # the trial is over
    return rounds


def test_a_turn_whose_way_nobody_can_go_ends_the_trial():
    trials = begun(2)
    turn(trials, 2, allowed=False, tokens=4)
    for _ in range(IN_VAIN):  # of two sequences; one that does go is enough
        trials.observe(2, 4, 1.0, allowed=False)
        trials.observe(2, 4, 1.0, allowed=False)
    assert trials.on_trial(2)
    trials.observe(2, 1, 1.0, allowed=True)
    for _ in range(2 * IN_VAIN):
        trials.observe(2, 4, 1.0, allowed=False)
    assert trials.on_trial(2)
    trials.observe(2, 4, 1.0, allowed=False)
    assert not trials.on_trial(2)
    assert not trials.allow(2)
    for _ in range(4):
        trials.observe(2, KEPT_TOKENS, 1.0, allowed=False)
    assert trials.on_trial(2)  # the next one


def test_outside_of_a_trial_some_may_go_another_way_for_good():
    trials = new_trials(first=True)
    for _ in range(IN_VAIN * 4):
        trials.observe(2, 1, 1.0, allowed=False)
    assert trials.allow(2)


def test_rounds_that_began_before_the_way_changed_are_not_counted():
    trials = begun(2)
    for _ in range(TRIAL_TURNS):
        turn(trials, 2, allowed=False, tokens=4, late=100)
        for _ in range(100):
            trials.observe(2, 1000, 1.0, allowed=False)  # late ones
        turn(trials, 2, allowed=True, tokens=5)
        for _ in range(100):
            trials.observe(2, 1, 1.0, allowed=True)
    assert trials.allow(2)


def test_the_first_round_of_each_sequence_behind_a_change_is_not_counted():
    """They are verified from branches of the turn before, or had none."""
    trials = begun(4)
    turn(trials, 4, allowed=False, tokens=4)
    for _ in range(4):
        trials.observe(4, 1000, 1.0, allowed=True)
    for _ in range(3):
        trials.observe(4, 1000, 1.0, allowed=False)
    assert turn(trials, 4, allowed=True, tokens=4) == TURN_TOKENS


def test_a_turn_waits_for_those_that_are_late_but_not_for_ever():
    trials = begun(4)
    turn(trials, 4, allowed=False, tokens=1)
    waited = turn(trials, 4, allowed=True, tokens=1)
    assert waited == 4 * (PATIENCE + TURN_TOKENS) - 1  # one sequence changed the way itself
    turn(trials, 4, allowed=False, tokens=1, late=3)
    assert turn(trials, 4, allowed=True, tokens=1, late=3) == 4 * (1 + TURN_TOKENS)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("timed", [(), (True,), (False,)])
def test_where_a_way_could_not_be_timed_what_was_taken_for_the_better_one_stays_so(first, timed):
    trials, ways = new_trials(first=first), set()
    for _ in range(2 * (EACH + 2 * TRIAL_TURNS * (TURN_TOKENS + PATIENCE))):
        ways.add(allowed := trials.allow(2))
        trials.observe(2, 1, 1.0 if allowed in timed else 0.0, allowed=allowed)
    assert ways == {True, False}
    assert trials.longest_piece(2, PIECE + 1) > PIECE  # the trial is over
    assert trials.allow(2) is first
