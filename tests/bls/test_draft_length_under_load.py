"""Several sequences draft only where all of them together are better off by it."""

from dataclasses import replace

import pytest
from taught import copied, drafted, no_trials, taught

from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.draft_length import FIRST_PIECE, KEPT_ROUNDS, AdaptiveLength
from tandem.bls.draft_statistics import BEFORE_TRIAL, DraftStatistics
from tandem.bls.effects import DraftPlan, StepSeconds
from tandem.bls.load_trials import PIECE


class Crowd:
    """Requests side by side. One that drafts earns twice as much, and slows all by ``harm``."""

    def __init__(self, running, *, harm):
        self.draft_statistics = DraftStatistics(16, lambda: running, rated=False)
        self.lengths = [AdaptiveLength(self.draft_statistics) for _ in range(running)]
        self.harm = harm
        for length in self.lengths:
            length.verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))  # their prompts

    def round(self):
        """Each does a step; return the plans."""
        plans = [length.plan(4) for length in self.lengths]
        slower = 1 + self.harm * sum(plan.num_tokens > 0 for plan in plans)
        for plan, length in zip(plans, self.lengths, strict=True):
            if plan.num_tokens:
                seconds = StepSeconds(0.05 * slower, 0.02 * slower)
                draft = drafted(*[1] * plan.num_tokens, engine_seconds=0.01 * slower)
                length.verified(replace(draft, plan=plan), plan.num_tokens, seconds)
            else:
                seconds = 0.02 * slower * plan.plain_tokens
                length.observe_plain_step(plan.plain_tokens, StepSeconds(seconds, seconds))
        return plans

    def behind_a_trial(self):
        """Let the next trial pass; return the plans of a round behind it."""
        while not self.on_trial:
            self.round()
        while self.on_trial:
            self.round()
        self.round()
        return self.round()

    @property
    def on_trial(self):
        """Whether a trial is under way."""
        return self.draft_statistics.longest_piece == PIECE


@pytest.mark.parametrize(("harm", "drafts"), [(0.1, False), (0.01, True)])
def test_sequences_draft_only_where_all_together_gain_by_it(harm, drafts):
    """16 that draft have 100 tokens a second, over 1 + 16 times the harm; without they have 50."""
    crowd = Crowd(16, harm=harm)
    plans = crowd.behind_a_trial()
    assert all(bool(plan.num_tokens) == drafts for plan in plans)
    assert crowd.draft_statistics.allows_drafts is drafts


def test_sequences_alone_ask_again_after_a_short_piece_in_a_trial_and_after_a_whole_one_else():
    crowd = Crowd(16, harm=0.1)
    while crowd.draft_statistics.allows_drafts:
        crowd.round()
    # By what they have measured, drafts bring twice as much: a piece is no longer than with them.
    assert {plan.plain_tokens for plan in crowd.round()} == {PIECE // 2 + 1}
    for _ in range(2):
        plans = crowd.round()
    assert [plan.plain_tokens for plan in plans] == [PIECE] * 16
    plans = crowd.behind_a_trial()
    assert [plan.plain_tokens for plan in plans] == [MOST_TOKENS] * 16


@pytest.mark.parametrize("num_tokens", [1, PIECE, MOST_TOKENS])
def test_answers_that_are_one_call_each_do_not_end_drafts_for_good(num_tokens):
    """Their first call is all they have, and its time is that of their prompt."""
    draft_statistics, drafting = DraftStatistics(16, lambda: 4, rated=False), []
    for _ in range(4000):
        length = AdaptiveLength(draft_statistics)
        plan = length.plan(num_tokens)
        drafting.append(plan.num_tokens > 0)
        if plan.num_tokens:
            for _ in range(2):
                draft = replace(drafted(1, 1, engine_seconds=0.01), plan=plan)
                length.verified(draft, 2, StepSeconds(0.05, 0.03))
        else:
            count = min(num_tokens, plan.plain_tokens)
            length.observe_plain_step(count, StepSeconds(0.02 * count, 0.02 * count))
    assert False in drafting  # in a trial
    assert all(drafting[-100:])


def test_whether_to_draft_is_first_tried_after_a_moment():
    """Where drafts do not pay, all before that is lost."""
    draft_statistics = DraftStatistics(16, lambda: 64, rated=False)
    draft_statistics.observe(64 * BEFORE_TRIAL - 1, 1.0, allowed=True)
    assert not draft_statistics.on_trial
    draft_statistics.observe(1, 1.0, allowed=True)
    assert draft_statistics.on_trial


def test_in_a_trial_of_another_loop_a_piece_is_short_also_where_no_draft_is_known(monkeypatch):
    draft_statistics = DraftStatistics(16, lambda: 4, rated=False)
    refusing(monkeypatch, draft_statistics)
    monkeypatch.setattr(type(draft_statistics), "on_trial", True)
    monkeypatch.setattr(type(draft_statistics), "longest_piece", PIECE)
    assert AdaptiveLength(draft_statistics).plan(4) == DraftPlan(0, plain_tokens=PIECE)


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
    assert length.copy_length(copied(1, 1, 1, 1), 4) == 4
    refusing(monkeypatch, draft_statistics)
    assert not length.allows_drafts()
    assert length.copy_length(copied(1, 1, 1, 1), 4) == 0


def test_an_arm_is_not_kept_where_no_drafts_are_worth_it_any_more(monkeypatch):
    length, draft_statistics = taught(rounds=KEPT_ROUNDS + 2)
    length.plan(4)  # a first sample
    length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    assert length.plan(4) == DraftPlan(1)
    with monkeypatch.context() as patches:
        refusing(patches, draft_statistics)
        assert length.plan(4) == DraftPlan(0, plain_tokens=MOST_TOKENS)
    draft_statistics.learn_plain_step(32, StepSeconds(0.032, 0.032))  # alone is far better
    assert length.plan(4) == DraftPlan(0, plain_tokens=FIRST_PIECE)


def keeping(monkeypatch, *, on_trial, in_turn=False):
    """A request that has just chosen an arm to keep; what trials are asked and told from then.

    on_trial: as it chose. in_turn: as its next rounds end.
    """
    draft_statistics = taught(rounds=400)[1]
    no_trials(monkeypatch)
    monkeypatch.setattr(type(draft_statistics), "on_trial", on_trial)
    length, seen = AdaptiveLength(draft_statistics), []
    play(length, 2)

    class Trials:
        def allow(self, _):
            seen.append("asked")
            return True

        def observe(self, _, tokens, seconds, *, allowed):
            seen.append(("told", tokens, seconds, allowed))

        def count(self, _, tokens):
            if not in_turn:
                seen.append(("counted", tokens))
            return not in_turn

    monkeypatch.setattr(draft_statistics, "_trials", Trials())
    return length, seen


def play(length, num_rounds):
    """Let rounds pass, each with two tokens."""
    for _ in range(num_rounds):
        plan = length.plan(4)
        length.verified(replace(drafted(1), plan=plan), 1, StepSeconds(0.07, 0.05))
    return plan


TOLD = ["asked", ("told", 2, 0.07, True)]


def test_rounds_by_a_kept_arm_ask_nobody_and_their_tokens_are_counted(monkeypatch):
    """What they ask and tell takes a processor more time than all the rest of them."""
    length, seen = keeping(monkeypatch, on_trial=False)
    assert play(length, KEPT_ROUNDS + 1) == play(length, 1)._replace(is_kept=False)
    assert seen == [("counted", 2)] * KEPT_ROUNDS + TOLD + [("counted", 2)]


def test_rounds_by_a_kept_arm_ask_and_tell_what_they_take_in_a_trial(monkeypatch):
    length, seen = keeping(monkeypatch, on_trial=True)
    assert play(length, KEPT_ROUNDS).is_kept
    assert seen == TOLD * KEPT_ROUNDS


def test_a_round_by_a_kept_arm_that_ends_in_a_turn_is_told_and_the_next_one_asks(monkeypatch):
    """Trials wait for those that are late: one that is not told of is waited for in vain."""
    length, seen = keeping(monkeypatch, on_trial=False, in_turn=True)
    assert play(length, 3).is_kept
    assert seen == [("told", 2, 0.07, True)] + 2 * TOLD


def test_rounds_by_a_kept_arm_ask_and_tell_until_enough_is_known(monkeypatch):
    length, draft_statistics = taught(rounds=KEPT_ROUNDS + 2)
    no_trials(monkeypatch)
    monkeypatch.setattr(type(draft_statistics), "on_trial", False)
    seen = []
    monkeypatch.setattr(type(draft_statistics), "count", lambda _, tokens: not seen.append(tokens))
    play(length, 2 * KEPT_ROUNDS)
    assert not seen


def test_a_draft_by_a_kept_arm_that_failed_is_told_with_its_time(monkeypatch):
    length, seen = keeping(monkeypatch, on_trial=False)
    assert length.plan(4).is_kept
    length.observe_plain_step(1, StepSeconds(5.0, 0.05))
    assert seen == [("told", 1, 5.0, True)]


def test_what_passes_behind_a_kept_arm_while_the_draft_engine_is_unwell_tells_of_no_way(
    monkeypatch,
):
    length, seen = keeping(monkeypatch, on_trial=False)
    play(length, 1)
    length.observe_plain_step(8, StepSeconds(0.5, 0.5))
    assert seen == [("counted", 2), ("told", 8, 0.0, True)]


def test_an_arm_is_no_longer_kept_once_a_copy_was_not_allowed(monkeypatch):
    length, _ = keeping(monkeypatch, on_trial=False)
    monkeypatch.setattr(DraftStatistics, "allows_drafts", False)
    monkeypatch.setattr(DraftStatistics, "longest_piece", MOST_TOKENS)
    assert length.copy_length(copied(1, 1), 4) == 0
    assert not length.plan(4).num_tokens


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


def test_each_call_for_tokens_that_were_to_be_decoded_alone_counts(monkeypatch):
    length, draft_statistics = taught(rounds=400)
    told = refusing(monkeypatch, draft_statistics)
    length.plan(4)
    for _ in range(2):
        length.observe_plain_step(8, StepSeconds(0.4, 0.3))
    assert told == [(8, 0.4, False), (8, 0.4, False)]


def about_to_draft(monkeypatch):
    """A request that has chosen a draft, what it learns from, and what trials are told."""
    length, draft_statistics = taught(rounds=400)
    told = refusing(monkeypatch, draft_statistics)
    monkeypatch.setattr(type(draft_statistics), "allows_drafts", True)
    while not length.plan(4).num_tokens:
        length.observe_plain_step(8, StepSeconds(0.4, 0.4))
    return length, draft_statistics, told


def test_the_time_of_a_draft_that_failed_is_not_what_the_target_takes(monkeypatch):
    length, draft_statistics, told = about_to_draft(monkeypatch)
    before = draft_statistics.plain_times.a_token(8)
    length.observe_plain_step(1, StepSeconds(5.0, 0.05))
    assert told[-1] == (1, 5.0, True)
    assert draft_statistics.plain_times.a_token(8) == before


def test_what_passes_while_the_draft_engine_is_unwell_tells_of_no_way(monkeypatch):
    """Nobody asked for a draft."""
    length, draft_statistics, told = about_to_draft(monkeypatch)
    length.verified(drafted(1), 1, StepSeconds(0.2, 0.1))
    before = draft_statistics.plain_times.a_token(8)
    length.observe_plain_step(8, StepSeconds(0.5, 0.5))
    length.verified(copied(1), 1, StepSeconds(0.3, 0.1))
    assert told[-2:] == [(8, 0.0, True), (2, 0.0, True)]
    assert draft_statistics.plain_times.a_token(8) > before  # that was worth knowing


def test_trials_are_told_that_a_prompt_was_computed_but_not_its_time(monkeypatch):
    draft_statistics = DraftStatistics(2, rated=False)
    told = refusing(monkeypatch, draft_statistics)
    AdaptiveLength(draft_statistics).verified(drafted(1, 1), 1, StepSeconds(9.0, 9.0))
    AdaptiveLength(draft_statistics).observe_plain_step(8, StepSeconds(9.0, 9.0))
    chosen = AdaptiveLength(draft_statistics)
    chosen.plan(4)
    chosen.observe_plain_step(8, StepSeconds(9.0, 9.0))
    assert told == [(2, 0.0, True), (8, 0.0, True), (8, 0.0, False)]


def test_a_branch_says_nothing_of_what_a_call_costs():
    length, draft_statistics = taught()
    rounds = draft_statistics.drafts.all.rounds
    length.verified(replace(drafted(1, 1), drafted_ahead=True), 1, StepSeconds(0.2, 0.1))
    assert draft_statistics.drafts.all.rounds == rounds
