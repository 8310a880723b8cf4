"""How many tokens to draft: a fixed number, or what earns most tokens a second.

Adaptive lengths are chosen among arms (``bls.arms``), by what all requests have learned of drafts
(``bls.draft_statistics``). The target alone is an arm as well; it wins where drafts do not pay.

What is not chosen is not learned, so it is tried now and then. What a trial costs beside the best
choice is known before: those of each kind, of drafts and of the target alone, may take
``draft_statistics.SHARE`` of the time together.

Where several sequences decode, all that is what one of them gains. Whether all of them together are
better off with drafts or without any is tried (``bls.load_trials``).
"""

from __future__ import annotations

from typing import Protocol

from tandem.bls.arms import Arm
from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.draft_statistics import DraftChoice, DraftStatistics
from tandem.bls.effects import Draft, DraftPlan, StepSeconds

FIRST_TOKENS = 8  # of a draft, in a deployment that has no statistics yet
ADVANTAGE = 1.02  # of the target alone, before drafting stops
FIRST_PIECE = 8  # tokens without drafts before drafts are thought of again; then twice as many
KEPT_ROUNDS = 7  # that an arm is kept for: to choose takes a processor's time, and little changes
KEPT_AT_FIRST = 3  # the same, while what drafts earn is still being learned
TRIAL_TOKENS = 2  # the shortest draft that tells whether drafts pay again


class DraftLength(Protocol):
    """Decides on the length of a draft model's next draft."""

    def plan(self, limit: int, *, ahead: bool = False) -> DraftPlan:
        """Decide; ``limit`` (>= 1) is what fits.

        ahead: others are drafted behind it while it is verified; the limit is the best length then.
        """

    def copy_length(self, copied: Draft, limit: int) -> int:
        """Decide how much of a copy to verify; 0: ``plan`` is asked for something better."""

    def allows_drafts(self) -> bool:
        """Whether any draft is worth being made now, also ahead of its round."""

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Note what became of a draft, also of a copy, and what its round took."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Note what the target took for tokens without drafts."""


class FixedLength:
    """The same length in every round."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def plan(self, limit: int, *, ahead: bool = False) -> DraftPlan:  # noqa: ARG002
        """Draft as many as fit."""
        return DraftPlan(min(limit, self._num_tokens))

    def copy_length(self, copied: Draft, limit: int) -> int:  # noqa: ARG002
        """All of it."""
        return len(copied)

    def allows_drafts(self) -> bool:
        """Always."""
        return True

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Nothing changes."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Nothing changes."""


class AdaptiveLength:
    """What promises most for one request, from its own rounds and everybody's."""

    def __init__(self, draft_statistics: DraftStatistics) -> None:
        self._draft_statistics = draft_statistics
        self._own = draft_statistics.of_a_request()
        self._steps = 0
        self._rest = FIRST_PIECE
        self._piece = MOST_TOKENS  # that the target decodes in a call, if it may
        self._due = 0  # tokens that it was to decode alone
        self._caught_up = False  # the draft model, with the context
        self._trial_goes_on = False
        self._arm: Arm | None = None  # the last choice,
        self._kept = 0  # and for how many rounds more
        self._seconds_kept = 0.0  # that these have taken
        self._ahead = False  # that it was chosen for a draft ahead of others
        self._asks_nobody = False  # in these: enough is known, and nothing is tried
        self._allowed = True  # to draft, in the round under way
        self._chose = False  # how it goes; not where the draft engine is unwell, say

    def plan(self, limit: int, *, ahead: bool = False) -> DraftPlan:
        """Choose the target alone, a trial, or the best draft.

        Ahead of others that is the longest one, also where it is unsure: the branches behind it are
        worth more than the time that stopping would save. An arm is kept for one of both alone:
        the limits differ.
        """
        if ahead != self._ahead:
            self._ahead, self._kept = ahead, 0
        plan = self._planned(limit)
        if ahead and plan.num_tokens and not plan.on_trial:
            return plan._replace(num_tokens=limit, stop_probability=0.0)
        return plan

    def copy_length(self, copied: Draft, limit: int) -> int:
        """Choose how much of a copy is verified: 0 where the model, or nobody, earns more."""
        draft_statistics = self._draft_statistics
        if not self._begin_round():
            return 0
        if not draft_statistics.knows_drafts:
            return len(copied)
        arm = draft_statistics.best_copy(self._own, copied)
        choice = draft_statistics.choice(self._own, limit, self._piece)
        if arm.rate >= choice.rate:
            return arm.length
        return len(copied) if draft_statistics.pays_copy(choice, self._own, copied) else 0

    def allows_drafts(self) -> bool:
        """Whether all sequences together are better off with drafts, or try them now."""
        return self._draft_statistics.allows_drafts

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Learn from a round; the first one's times are those of the prompt.

        One that went by an older choice costs no more of a processor's time than a fixed length. A
        branch says nothing of what a call costs.
        """
        is_kept = draft.plan is not None and draft.plan.is_kept
        if is_kept and self._asks_nobody:
            self._asks_nobody = self._draft_statistics.count(num_accepted + 1)
        if is_kept and self._asks_nobody:
            self._chose = False
        else:
            chosen = self._chose or draft.drafted_ahead
            self._tell_trials(num_accepted + 1, seconds, chosen=chosen)
        if draft.drafted_ahead:
            return
        if is_kept:
            self._seconds_kept += seconds.whole
            if not num_accepted:  # another arm may be better by now
                self._kept = 0
            return
        timed = seconds if self._steps else None
        self._draft_statistics.learn(
            draft,
            num_accepted,
            timed,
            self._own,
            caught_up=self._caught_up,
            seconds_before=self._seconds_kept,
        )
        self._seconds_kept = 0.0
        self._steps += 1
        self._caught_up |= draft.answer is not None

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Learn what the target costs alone; the first call's times are those of the prompt.

        Where a draft was to be made and failed, that is part of the time, and tells trials only.
        """
        alone, chosen = self._due > 0, self._chose
        self._tell_trials(num_tokens, seconds, chosen=chosen or alone)
        if num_tokens and self._steps and (alone or not chosen):
            if num_tokens < self._due:  # somebody reads along
                self._piece = num_tokens
            self._due -= num_tokens
            self._draft_statistics.learn_plain_step(num_tokens, seconds)
        self._steps += 1
        self._caught_up = self._trial_goes_on = False

    def _tell_trials(self, num_tokens: int, seconds: StepSeconds, *, chosen: bool) -> None:
        """Tell that a round has ended; the first one's time is that of the prompt.

        chosen: by what is allowed. What went otherwise for other reasons tells of neither way.
        """
        whole = seconds.whole if self._steps and chosen else 0.0
        self._chose = False
        self._draft_statistics.observe(num_tokens, whole, allowed=self._allowed)

    def _planned(self, limit: int) -> DraftPlan:
        """Choose, unless drafts are not allowed, nothing is known yet, or an arm is kept."""
        if self._kept and self._arm and self._asks_nobody:
            self._chose = True
            return self._as_before(self._arm, limit)
        if not self._begin_round():
            return self._alone(self._longest_piece(limit))
        if not self._draft_statistics.knows_drafts:
            return self._draft(min(limit, FIRST_TOKENS))
        if self._kept and self._arm:
            return self._as_before(self._arm, limit)
        return self._chosen(limit)

    def _begin_round(self) -> bool:
        """Note whether drafts are allowed in it; no arm is kept where they are not."""
        self._allowed = self._draft_statistics.allows_drafts
        if not self._allowed:
            self._kept = 0
        self._chose, self._due = True, 0
        return self._allowed

    def _longest_piece(self, limit: int) -> int:
        """Return how many tokens the target decodes alone, where no drafts are allowed."""
        draft_statistics = self._draft_statistics
        longest = draft_statistics.longest_piece
        if not (draft_statistics.on_trial and draft_statistics.knows_drafts):
            return longest
        return draft_statistics.choice(self._own, limit, self._piece).plain_piece(longest)

    def _chosen(self, limit: int) -> DraftPlan:
        """Choose the best arm that fits, the target alone, or a trial of something else."""
        draft_statistics = self._draft_statistics
        choice = draft_statistics.choice(self._own, limit, self._piece)
        if choice.alone > ADVANTAGE * choice.arm.rate:
            return self._alone_or_trial(choice, limit)
        self._rest = FIRST_PIECE
        if self._steps and draft_statistics.pays_plain(choice, FIRST_PIECE):
            return self._alone(choice.plain_piece(FIRST_PIECE))
        longest = min(limit, draft_statistics.max_draft_len)
        if draft_statistics.pays_draft(choice, self._own, longest):
            return self._draft(longest)
        settled = draft_statistics.settled
        if settled:
            kept = KEPT_ROUNDS if self._steps or not self._own.from_second_round else 0
        else:
            kept = KEPT_AT_FIRST if self._steps > KEPT_AT_FIRST else 0
        self._arm, self._kept = choice.arm, kept
        self._asks_nobody = settled and not draft_statistics.on_trial
        if self._asks_nobody and not self._learns_at_once and not draft_statistics.learns_in_turn():
            return DraftPlan(choice.arm.length, choice.arm.stop, is_kept=True)
        return self._draft(choice.arm.length, choice.arm.stop)

    @property
    def _learns_at_once(self) -> bool:
        """Whether this round is one of the first, from which answers of a few rounds are known."""
        return self._steps == 0 or (self._steps == 1 and self._own.from_second_round)

    def _as_before(self, arm: Arm, limit: int) -> DraftPlan:
        """Keep an arm; once enough is known, a round by it costs no time to learn from."""
        self._kept -= 1
        length = min(limit, arm.length)
        if self._draft_statistics.settled:
            return DraftPlan(length, arm.stop, is_kept=True)
        return self._draft(length, arm.stop)

    def _alone_or_trial(self, choice: DraftChoice, limit: int) -> DraftPlan:
        """Leave the target alone for a while, then for a longer one; try short drafts at times.

        The first draft of a trial has the draft model catch up with the context: only a second one
        tells what drafts take.
        """
        length = min(limit, max(TRIAL_TOKENS, choice.arm.length))
        if self._caught_up and self._trial_goes_on:
            self._trial_goes_on = False
            return self._draft(length, on_trial=True)
        if self._steps and self._draft_statistics.pays_draft(choice, self._own, length, rounds=2):
            self._trial_goes_on = True
            return self._draft(length, on_trial=True)
        rest, self._rest = self._rest, min(2 * self._rest, MOST_TOKENS)
        return self._alone(min(rest, self._draft_statistics.longest_piece))

    def _alone(self, num_tokens: int) -> DraftPlan:
        self._due = num_tokens
        return DraftPlan(0, plain_tokens=num_tokens)

    def _draft(self, num_tokens: int, stop: float = 0.0, *, on_trial: bool = False) -> DraftPlan:
        rated = self._draft_statistics.rated
        return DraftPlan(num_tokens, stop, wants_log_probs=rated, on_trial=on_trial)
