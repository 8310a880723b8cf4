"""Whether requests draft ahead, and by which plan, follows from what they have learned."""

from dataclasses import dataclass, replace

import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.draft_ahead.plan import FIRST_PLAN
from tandem.bls.draft_ahead.statistics import BEFORE_TRIAL, MOST_UNREAD, AheadStatistics
from tandem.bls.draft_ahead.branches import DraftAhead
from tandem.bls.effects import Draft, DraftPlan, EngineAnswer, StepSeconds
from tandem.bls.load_trials import PATIENCE, TRIAL_TURNS, TURN_TOKENS
from tandem.bls.settings import MAX_HELPERS

AHEAD = with_engines(SETTINGS, draft={"branches": True})


def ahead_of(longest=4, *, always=True, running=1):
    statistics = AheadStatistics(AHEAD, lambda: running)
    return DraftAhead(statistics, longest, always=always)


def learn(ahead, step=0.00109, accepted=4, rounds=200):
    for number in range(rounds):
        tokens = 3 + number % 3
        answer = EngineAnswer(ids(*[1] * tokens), 0.0012 + tokens * step, tokens * step)
        draft = Draft(ids(*[1] * tokens), drafter="draft_model", answer=answer)
        verification = 0.021 + 0.0001 * tokens
        seconds = StepSeconds(answer.seconds + verification, verification)
        ahead.verified(draft, min(accepted, tokens), seconds, ahead=ahead.plan is not None)
        branches = step * (1 + 0.003 * 64) * 11
        answer = EngineAnswer(ids(), 0.0012 + branches, branches, branches=[None] * 64)
        ahead.statistics.timed_branches(answer, 10, 64)


@pytest.mark.parametrize(("running", "branches"), [(1, 128), (2, 64), (16, 8)])
def test_the_more_sequences_decode_the_fewer_branches_each_asks_for(running, branches):
    ahead = ahead_of(10, always=True, running=running)
    learn(ahead)
    assert ahead.plan.num_branches == branches


@dataclass
class Load:
    """So many sequences, of which each round takes so long in turns, and ahead."""

    running: int
    in_turns: float = 0.05
    ahead: float = 0.05

    def pass_rounds(self, ahead, number):
        """Let rounds of any of them pass; return in how many branches were drafted."""
        draft, were_ahead = Draft(ids(1, 1, 1, 1), drafter="draft_model"), []
        for _ in range(number):
            were_ahead.append(ahead.plan is not None)
            whole = self.ahead if were_ahead[-1] else self.in_turns
            ahead.verified(draft, 4, StepSeconds(whole, whole), ahead=were_ahead[-1])
        return sum(were_ahead)


TRIED = (BEFORE_TRIAL + 2 * TRIAL_TURNS * (TURN_TOKENS + PATIENCE)) // 5  # rounds of each sequence


@pytest.mark.parametrize("running", [MAX_HELPERS, MAX_HELPERS + 1])
def test_many_sequences_draft_nothing_ahead_by_themselves(running):
    load = Load(running, in_turns=0.05, ahead=0.04)
    by_itself, always = (ahead_of(10, always=always, running=running) for always in (False, True))
    learn(by_itself)
    assert (load.pass_rounds(by_itself, running * TRIED) > 0) == (running <= MAX_HELPERS)
    assert always.plan is not None


def test_what_many_earned_is_not_held_against_fewer_that_draft_ahead():
    """Under one of too many nobody can go ahead: the turn for it used to last until fewer could."""
    load = Load(2 * MAX_HELPERS, in_turns=0.09)
    statistics = AheadStatistics(AHEAD, lambda: load.running)
    ahead = DraftAhead(statistics, 10, always=False)
    learn(ahead)
    assert load.pass_rounds(ahead, 2 * load.running * TRIED) == 0
    load.running, load.in_turns, load.ahead = MAX_HELPERS, 0.050, 0.055
    assert load.pass_rounds(ahead, load.running * TRIED) > 0
    assert load.pass_rounds(ahead, load.running * TURN_TOKENS) == 0


@pytest.mark.parametrize("many", [MAX_HELPERS + 1, 4 * MAX_HELPERS])
def test_who_comes_back_from_among_too_many_meets_no_turn_that_they_had_ended(many):
    load = Load(MAX_HELPERS)
    ahead = DraftAhead(AheadStatistics(AHEAD, lambda: load.running), 10, always=False)
    learn(ahead)
    while ahead.plan is None:
        load.pass_rounds(ahead, 1)
    load.running = many
    assert ahead.plan is None
    load.running = MAX_HELPERS
    assert ahead.plan is None


def test_where_all_decode_in_turns_no_plan_is_made(monkeypatch):
    """It takes a quarter of a millisecond of a processor that others wait for."""
    statistics = AheadStatistics(AHEAD, lambda: 4)
    learn(DraftAhead(statistics, 10, always=False))
    monkeypatch.setattr("tandem.bls.ahead_statistics.best_plan", None)
    assert statistics.plan(10, always=False) is None


def test_where_the_draft_is_as_slow_as_the_target_auto_drafts_nothing_ahead():
    for always in (False, True):
        ahead = ahead_of(8, always=always)
        learn(ahead, step=0.02, accepted=1)
        assert (ahead.plan is not None) == always


def test_auto_drafts_nothing_ahead_where_that_slows_the_others_down():
    """Costs of calls promise a gain, but rounds of all take twice as long."""
    for always in (False, True):
        ahead = ahead_of(10, always=always, running=4)
        learn(ahead, rounds=20)
        draft = Draft(ids(1, 1, 1, 1), drafter="draft_model")
        were_ahead = []
        trial = 2 * TRIAL_TURNS * TURN_TOKENS
        for _ in range(4 * BEFORE_TRIAL + 2 * trial):
            were_ahead.append(ahead.plan is not None)
            seconds = StepSeconds(0.05 if were_ahead[-1] else 0.025, 0.02)
            ahead.verified(draft, 4, seconds, ahead=were_ahead[-1])
        assert any(were_ahead)
        assert any(were_ahead[-trial:]) == always


def test_answers_of_one_round_each_do_not_go_on_ahead_for_good():
    """That round's time is that of the prompt."""
    long = ahead_of(10, always=False, running=4)
    learn(long, rounds=20)
    draft, seconds = Draft(ids(1, 1, 1, 1), drafter="draft_model"), StepSeconds(0.05, 0.02)
    while long.plan is None:
        long.verified(draft, 4, seconds, ahead=False)
    for _ in range(2 * TRIAL_TURNS * (TURN_TOKENS + PATIENCE)):
        answer = DraftAhead(long.statistics, 10, always=False)
        answer.verified(draft, 4, seconds, ahead=answer.plan is not None)
    assert long.plan is None


def test_several_sequences_draft_in_turns_until_it_was_tried_whether_ahead_is_better():
    ahead = ahead_of(10, always=False, running=4)
    learn(ahead, rounds=5)
    assert ahead.plan is None


def test_drafts_that_stop_where_they_are_unsure_say_nothing_of_the_acceptance():
    statistics, draft = AheadStatistics(AHEAD), Draft(ids(1, 1, 1, 1), drafter="draft_model")
    before = statistics.acceptance("draft_model")
    for _ in range(50):
        statistics.verified(replace(draft, plan=DraftPlan(8, 0.5)), 4)
    assert statistics.acceptance("draft_model") == before
    for _ in range(50):
        statistics.verified(replace(draft, plan=DraftPlan(4)), 4)
        statistics.verified(replace(draft, drafted_ahead=True), 4)
    assert statistics.acceptance("draft_model") > 0.95


def test_a_call_that_was_on_its_way_for_no_time_does_not_outdate_what_others_were():
    statistics = AheadStatistics(AHEAD)
    for number in range(300):
        way = 0.002 * (number % 2)
        answer = EngineAnswer(ids(1, 1), 0.004 + way, 0.004)
        draft = Draft(ids(1, 1), drafter="draft_model", answer=answer)
        statistics.timed(draft, StepSeconds(0.03 + way, 0.02))
        if number > 200:
            assert statistics.seconds(2) == pytest.approx(0.004 + 0.001, abs=1e-4)


def test_a_plan_follows_when_costs_do():
    ahead = ahead_of(10)
    before = ahead.plan
    assert before == FIRST_PLAN
    learn(ahead)
    assert ahead.plan.num_branches == 128
    learn(ahead, step=0.004, rounds=2_000)
    assert ahead.plan.num_tokens < 5
    assert ahead.timeout == pytest.approx(0.0012 + 0.004 * ahead.plan.on_miss, rel=0.1)


def test_plans_with_room_for_few_tokens_and_for_many_are_kept_apart():
    ahead = ahead_of(12)
    learn(ahead)
    statistics = ahead.statistics
    for _ in range(2):  # the second time each is remembered
        wide, narrow = (statistics.plan(12, most, always=True) for most in (2**20, 65))
        assert wide.num_branches * wide.num_tokens > 65
        assert narrow.num_branches * narrow.num_tokens <= 65


def test_unread_logits_are_given_back_in_turn_and_the_oldest_forgotten():
    statistics = AheadStatistics(SETTINGS)
    assert statistics.next_unread_logits() is None
    statistics.unread_logits.extend(range(MOST_UNREAD + 1))
    assert [statistics.next_unread_logits() for _ in range(2)] == [1, 2]
