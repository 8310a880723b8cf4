"""Trials cost little also where sequences keep their lengths and ask nobody for some rounds."""

import heapq

import pytest
from scripted import ids

from tandem.bls.draft_length import KEPT_ROUNDS, AdaptiveLength
from tandem.bls.draft_statistics import SETTLED_ROUNDS, DraftStatistics
from tandem.bls.effects import Draft, EngineAnswer, StepSeconds
from tandem.bls.load_trials import TURN_TOKENS

TARGET, DRAFT = 0.02, 0.0005  # seconds of a call, and of a draft token


class Sequences:
    """Sequences whose drafts are all right: each decodes for ever, none waits for another."""

    def __init__(self, running, longest):
        self.statistics = DraftStatistics(longest, lambda: running, rated=False)
        self._lengths = [AdaptiveLength(self.statistics) for _ in range(running)]
        self._longest = longest
        self._ends = []  # of the rounds under way
        self.tokens = 0
        for number in range(running):
            self._begin(number, 1e-4 * number)

    def _begin(self, number, now):
        plan = self._lengths[number].plan(self._longest)
        draft, calls = DRAFT * plan.num_tokens, 1 if plan.num_tokens else plan.plain_tokens
        seconds = StepSeconds(draft + calls * TARGET, calls * TARGET)
        heapq.heappush(self._ends, (now + seconds.whole, number, plan, seconds))

    def round(self):
        """Let the next round end; its sequence begins another one."""
        now, number, plan, seconds = heapq.heappop(self._ends)
        if plan.num_tokens:
            tokens = ids(*[1] * plan.num_tokens)
            drafted = seconds.whole - seconds.target
            answer = EngineAnswer(tokens, drafted, drafted)
            draft = Draft(tokens, drafter="draft_model", answer=answer, plan=plan)
            self._lengths[number].verified(draft, plan.num_tokens, seconds)
            self.tokens += plan.num_tokens + 1
        else:
            self._lengths[number].observe_plain_step(plan.plain_tokens, seconds)
            self.tokens += plan.plain_tokens
        self._begin(number, now)

    def rounds_while(self, allowed, on_trial):
        """Let rounds pass as long as it is so; return their tokens."""
        before = self.tokens
        while (self.statistics.allows_drafts, self.statistics.on_trial) == (allowed, on_trial):
            self.round()
        return self.tokens - before


@pytest.mark.parametrize(("longest", "running"), [(12, 64), (32, 64), (32, 16)])
def test_a_turn_without_drafts_is_as_short_in_later_trials_as_in_the_first(longest, running):
    """Whoever was late by a length that it kept was waited for in vain, as long as patience lasts.

    Meanwhile nothing told that the turn was hopeless.
    """
    sequences, turns = Sequences(running, longest), []
    for _ in range(3):
        sequences.rounds_while(allowed=True, on_trial=False)
        sequences.rounds_while(allowed=True, on_trial=True)
        turns.append(sequences.rounds_while(allowed=False, on_trial=True) / running)
    assert sequences.statistics.drafts.all.rounds > SETTLED_ROUNDS  # so lengths were kept
    assert KEPT_ROUNDS * longest > TURN_TOKENS / 2
    assert max(turns) <= TURN_TOKENS
