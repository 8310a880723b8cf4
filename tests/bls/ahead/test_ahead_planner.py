"""The planner decides from measurements whether and how requests draft ahead."""

from dataclasses import replace

import pytest
from scripted import SETTINGS, ids, with_engines

from tandem.bls.ahead import AheadPlanner, DraftAhead
from tandem.bls.ports import Draft, DraftPlan, EngineResult

AHEAD = with_engines(SETTINGS, draft={"branches": True})


def ahead_of(*, always=True, running=1, settings=AHEAD):
    return DraftAhead(AheadPlanner(settings, lambda: running), always=always)


def learn(ahead, step=0.00109, accepted=4, rounds=200):
    for number in range(rounds):
        tokens = 3 + number % 3
        result = EngineResult(ids(*[1] * tokens), 0.0012 + tokens * step, tokens * step)
        draft = Draft(ids(*[1] * tokens), drafter="draft_model", result=result)
        verification = 0.021 + 0.0001 * tokens
        seconds = result.seconds + verification
        ahead.verified(draft, min(accepted, tokens), seconds)
        branches = step * (1 + 0.003 * 64) * 11
        result = EngineResult(ids(), 0.0012 + branches, branches, branches=[None] * 64)
        ahead.planner.record_branch_time(result, 10, 64)


@pytest.mark.parametrize(("running", "branches"), [(1, 128), (2, 64), (16, 8)])
def test_each_sequence_asks_for_fewer_branches_under_load(running, branches):
    ahead = ahead_of(running=running)
    learn(ahead)
    assert ahead.plan(10).num_branches == branches


@pytest.mark.parametrize(("running", "drafts_ahead"), [(1, True), (4, True), (5, False)])
def test_by_default_at_most_four_sequences_draft_ahead(running, drafts_ahead):
    by_default, always = (ahead_of(always=always, running=running) for always in (False, True))
    learn(by_default)
    assert (by_default.plan(10) is not None) == drafts_ahead
    assert always.plan(10) is not None


def test_auto_does_not_draft_ahead_with_a_slow_draft():
    for always in (False, True):
        ahead = ahead_of(always=always)
        learn(ahead, step=0.02, accepted=1)
        assert (ahead.plan(8) is not None) == always


def test_drafts_that_stopped_early_do_not_change_the_acceptance_rate():
    statistics, draft = AheadPlanner(AHEAD), Draft(ids(1, 1, 1, 1), drafter="draft_model")
    before = statistics.acceptance("draft_model")
    for _ in range(50):
        statistics.record_acceptance(replace(draft, plan=DraftPlan(8, 0.5)), 4)
    assert statistics.acceptance("draft_model") == before
    for _ in range(50):
        statistics.record_acceptance(replace(draft, plan=DraftPlan(4)), 4)
        statistics.record_acceptance(replace(draft, drafted_ahead=True), 4)
    assert statistics.acceptance("draft_model") > 0.95
