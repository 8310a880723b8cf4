"""How many tokens to draft: a fixed number, or what earns most tokens a second.

Adaptive lengths are chosen among arms. An arm is a longest length and a probability: the draft
model stops by itself as soon as it finds it less probable that all its tokens so far are right. A
round that drafted n tokens and had m accepted shows what every arm would have drafted and emitted
there: a shorter one exactly, a longer one up to its end and by averages from there. So all arms
learn from every round, and what an arm earns is

    tokens a second = tokens a round / (seconds of a round, given the tokens drafted in it)

where the seconds are learned from the rounds themselves (``bls.round_times``): they rise with the
load, and the choice follows. The target alone is an arm as well; it wins where drafts do not pay.

What is not chosen is not learned, so it is tried now and then. What a trial costs beside the best
choice is known before: all of them together may take ``SHARE`` of the time.

Where several sequences decode, all that is what one of them gains. Whether all of them together are
better off with drafts or without any is tried (``bls.load_trials``).

Source of the trade-off: Leviathan et al., arXiv:2211.17192, section 3.3; of stopping by the draft's
own confidence: Hugging Face's assisted generation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tandem.bls.arms import STOP_PROBABILITIES, Arm, Arms, RoundEarnings
from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.drafter_registry import DRAFT_MODEL, PROMPT_LOOKUP
from tandem.bls.effects import Draft, DraftPlan, StepSeconds
from tandem.bls.load_trials import LoadTrials
from tandem.bls.round_times import PlainTimes, RoundTimes

FIRST_ROUNDS, FIRST_TOKENS = 2, 8  # of a deployment that has no statistics yet
ADVANTAGE = 1.02  # of the target alone, before drafting stops
FIRST_PIECE = 8  # tokens without drafts before drafts are thought of again; then twice as many
SETTLED_ROUNDS = 200  # of all requests, after which some are not learned from
KEPT_ROUNDS = 3  # that an arm is kept for: to choose takes a processor's time, and little changes
TRIAL_TOKENS = 2  # the shortest draft that tells whether drafts pay again
SHARE = 0.003  # of all time, that each kind of trial may cost
LEAST_PRICE = 0.1  # of what a trial lasts
MOST_SAVED = 0.5  # seconds: trials that were not made are not made up for at once
# How often a copied token is accepted that 1, 2, 3, 4 or more tokens led to, until it is known.
COPY_ACCEPTANCE = (0.3, 0.6, 0.7, 0.8)
COPY_CONFIDENCE = 2.0  # rounds


class DraftLength(Protocol):
    """Decides on the length of a draft model's next draft."""

    def plan(self, limit: int) -> DraftPlan:
        """Decide; ``limit`` (>= 1) is what fits."""

    def copy(self, copied: Draft, limit: int) -> int:
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

    def plan(self, limit: int) -> DraftPlan:
        """Draft as many as fit."""
        return DraftPlan(min(limit, self._num_tokens))

    def copy(self, copied: Draft, limit: int) -> int:  # noqa: ARG002
        """All of it."""
        return len(copied)

    def allows_drafts(self) -> bool:
        """Always."""
        return True

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Nothing changes."""

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Nothing changes."""


class TrialBudget:
    """Seconds that trials may cost: a share of all the time that passes."""

    def __init__(self) -> None:
        self._saved = 0.0

    def earn(self, seconds: float) -> None:
        """Note that time has passed."""
        self._saved = min(MOST_SAVED, self._saved + SHARE * seconds)

    def charge(self, seconds: float) -> None:
        """Note that a trial cost so much more than it was taken for."""
        self._saved -= seconds

    def pays(self, lasts: float, worth: float) -> bool:
        """Let a trial be made that lasts so long and earns what is worth so much, if it is saved.

        What promises nothing else than the best choice is no trial of much use: it has a price too.
        """
        costs = max(lasts - worth, LEAST_PRICE * lasts)
        if self._saved < min(costs, MOST_SAVED):
            return False
        self._saved -= costs
        return True


class DraftChoice(NamedTuple):
    """The best draft of a model for a request, beside the target alone in tokens a second."""

    arm: Arm
    alone: float

    @property
    def rate(self) -> float:
        """What the better of them promises."""
        return max(self.arm.rate, self.alone)


class RequestEarnings:
    """What one request has learned: by its model's drafts, and by copies of each kind."""

    def __init__(self, drafts: RoundEarnings, copies: list[RoundEarnings]) -> None:
        self.drafts, self.copies = drafts, copies


class DraftStatistics:
    """What all requests of a deployment have learned about drafts. Thread-safe.

    rated: the draft model returns the probability of each token and can stop by it. running: how
    many sequences decode now.
    """

    def __init__(
        self, max_draft_len: int, running: Callable[[], int] = lambda: 1, *, rated: bool
    ) -> None:
        self.rated = rated
        self.max_draft_len = max_draft_len
        self.drafts = Arms(max_draft_len, STOP_PROBABILITIES if rated else (0.0,))
        self.copies = [
            Arms(max_draft_len, (0.0,), acceptance=rate, confidence=COPY_CONFIDENCE)
            for rate in COPY_ACCEPTANCE
        ]
        self.round_times = RoundTimes()
        self.plain_times = PlainTimes()
        self._drafts_budget, self._plain_budget = TrialBudget(), TrialBudget()
        self._plain_sampled = False
        self._running = running
        self._trials = LoadTrials(first=True)
        self._lock = threading.Lock()

    def of_a_request(self) -> RequestEarnings:
        """Return what a request has learned that begins."""
        return RequestEarnings(
            self.drafts.of_a_request(), [arms.of_a_request() for arms in self.copies]
        )

    @property
    def knows_drafts(self) -> bool:
        """Whether drafts of the model have been timed, and some were verified."""
        return self.round_times.known and self.drafts.all.rounds >= FIRST_ROUNDS

    @property
    def allows_drafts(self) -> bool:
        """Whether sequences may draft now, under this load."""
        return self._trials.allow(self._running())

    @property
    def longest_piece(self) -> int:
        """Tokens that the target may decode alone before it is asked again whether they may."""
        return self._trials.longest_piece(self._running(), MOST_TOKENS)

    def observe(self, tokens: int, seconds: float, *, allowed: bool) -> None:
        """Count a round for the trial under way. allowed: whether drafts were, as it began."""
        self._trials.observe(self._running(), tokens, seconds, allowed=allowed)

    @property
    def settled(self) -> bool:
        """Whether so much is known that not every round has to be learned from."""
        return self.drafts.all.rounds >= SETTLED_ROUNDS

    def learn(
        self,
        draft: Draft,
        num_accepted: int,
        seconds: StepSeconds | None,
        own: RequestEarnings,
        *,
        caught_up: bool,
        seconds_before: float = 0.0,
    ) -> None:
        """Take a round in, for one request and for all.

        seconds: None where they say nothing, since the prompt was computed in them. caught_up:
        whether the draft model had computed nearly all of the context before. seconds_before: of
        rounds that passed meanwhile and of which nothing was learned.
        """
        with self._lock:
            self._earn(seconds_before)
            if seconds is not None:
                self._learn_times(draft, seconds, caught_up=caught_up)
            if draft.answer is not None:
                self.drafts.add(draft, num_accepted, own.drafts)
            else:
                kind = _kind(draft)
                self.copies[kind].add(draft, num_accepted, own.copies[kind])

    def learn_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Take a call without drafts in."""
        with self._lock:
            self.plain_times.add(num_tokens, seconds.target, seconds.whole)
            self._earn(seconds.whole)

    def choice(self, own: RequestEarnings, limit: int, piece: int) -> DraftChoice:
        """Return the best draft for a request that fits; alone, it decodes in such pieces."""
        with self._lock:
            times = self.round_times.of_drafts(DRAFT_MODEL.name)
            return DraftChoice(
                self.drafts.best(own.drafts, limit, *times), 1 / self._seconds_alone(piece)
            )

    def copy(self, own: RequestEarnings, copied: Draft) -> Arm:
        """Return how much of a copy is worth being verified."""
        kind = _kind(copied)
        with self._lock:
            times = self.round_times.of_copies(PROMPT_LOOKUP.name)
            return self.copies[kind].best(own.copies[kind], len(copied), *times)

    def pays_draft(
        self, choice: DraftChoice, own: RequestEarnings, length: int, *, rounds: int = 1
    ) -> bool:
        """Whether so many drafts of a length may be tried now, instead of what is best."""
        with self._lock:
            fixed, each = self.round_times.of_drafts(DRAFT_MODEL.name)
            emitted = self.drafts.emitted(own.drafts, length)
            return self._drafts_budget.pays(
                rounds * (fixed + each * length), rounds * emitted / choice.rate
            )

    def pays_copy(self, choice: DraftChoice, own: RequestEarnings, copied: Draft) -> bool:
        """Whether a copy may be tried now, instead of what is best."""
        kind = _kind(copied)
        with self._lock:
            fixed, each = self.round_times.of_copies(PROMPT_LOOKUP.name)
            emitted = self.copies[kind].emitted(own.copies[kind], len(copied))
            return self._drafts_budget.pays(fixed + each * len(copied), emitted / choice.rate)

    def pays_plain(self, choice: DraftChoice, num_tokens: int) -> bool:
        """Whether so many tokens may be decoded alone now, instead of what is best.

        One request does it at once, whatever it costs: until then it is only guessed what that is.
        """
        lasts, worth = num_tokens / choice.alone, num_tokens / choice.rate
        with self._lock:
            if self._plain_sampled:
                return self._plain_budget.pays(lasts, worth)
            self._plain_sampled = True
            self._plain_budget.charge(lasts - worth)
            return True

    def _learn_times(self, draft: Draft, seconds: StepSeconds, *, caught_up: bool) -> None:
        rest = seconds.whole - seconds.target
        if draft.answer is not None:
            tokens = len(draft.answer.tokens)
            draft_seconds = draft.answer.engine_seconds or draft.answer.seconds
            if caught_up:
                self.round_times.add_draft(tokens, draft_seconds)
            else:
                expected = self.round_times.draft(tokens)
                self._drafts_budget.charge(max(0.0, draft_seconds - expected))
            rest -= draft_seconds
        self.round_times.add_round(
            draft.drafter, len(draft), seconds.target, rest, waited=draft.waited
        )
        self._earn(seconds.whole)

    def _seconds_alone(self, piece: int) -> float:
        """Seconds a token of the target alone, in calls for so many tokens."""
        if self.plain_times.known:
            return self.plain_times.a_token(piece)
        return self.round_times.step(piece)

    def _earn(self, seconds: float) -> None:
        self._drafts_budget.earn(seconds)
        self._plain_budget.earn(seconds)


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
        self._allowed = True  # to draft, in the round under way

    def plan(self, limit: int) -> DraftPlan:
        """Choose, unless drafts are not allowed, nothing is known yet, or an arm is kept."""
        if not self._begin_round():
            self._kept = 0
            return self._alone(self._draft_statistics.longest_piece)
        if not self._draft_statistics.knows_drafts:
            return self._draft(min(limit, FIRST_TOKENS))
        if self._kept and self._arm:
            return self._as_before(self._arm, limit)
        return self._chosen(limit)

    def copy(self, copied: Draft, limit: int) -> int:
        """Choose how much of a copy is verified: 0 where the model, or nobody, earns more."""
        draft_statistics = self._draft_statistics
        if not self._begin_round():
            return 0
        if not draft_statistics.knows_drafts:
            return len(copied)
        arm = draft_statistics.copy(self._own, copied)
        choice = draft_statistics.choice(self._own, limit, self._piece)
        if arm.rate >= choice.rate:
            return min(len(copied), arm.length)
        return len(copied) if draft_statistics.pays_copy(choice, self._own, copied) else 0

    def allows_drafts(self) -> bool:
        """Whether all sequences together are better off with drafts, or try them now."""
        return self._draft_statistics.allows_drafts

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Learn from a round; the first one's times are those of the prompt.

        One that went by an older choice costs no more of a processor's time than a fixed length. A
        branch says nothing of what a call costs.
        """
        if self._steps:
            self._draft_statistics.observe(num_accepted + 1, seconds.whole, allowed=self._allowed)
        if draft.drafted_ahead:
            return
        if draft.plan is not None and draft.plan.is_kept:
            self._seconds_kept += seconds.whole
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
        """Learn what the target costs alone; the first call's times are those of the prompt."""
        if num_tokens and self._steps:
            if num_tokens < self._due:  # somebody reads along
                self._piece = num_tokens
            self._due -= num_tokens
            self._draft_statistics.observe(num_tokens, seconds.whole, allowed=self._allowed)
            self._draft_statistics.learn_plain_step(num_tokens, seconds)
        self._steps += 1
        self._caught_up = self._trial_goes_on = False

    def _begin_round(self) -> bool:
        """Note whether drafts are allowed in it."""
        self._allowed = self._draft_statistics.allows_drafts
        return self._allowed

    def _chosen(self, limit: int) -> DraftPlan:
        """Choose the best arm that fits, the target alone, or a trial of something else."""
        draft_statistics = self._draft_statistics
        choice = draft_statistics.choice(self._own, limit, self._piece)
        if choice.alone > ADVANTAGE * choice.arm.rate:
            return self._alone_or_trial(choice, limit)
        self._rest = FIRST_PIECE
        if self._steps and draft_statistics.pays_plain(choice, FIRST_PIECE):
            return self._alone(FIRST_PIECE)
        longest = min(limit, draft_statistics.max_draft_len)
        if draft_statistics.pays_draft(choice, self._own, longest):
            return self._draft(longest)
        self._arm, self._kept = choice.arm, KEPT_ROUNDS if self._steps > KEPT_ROUNDS else 0
        return self._draft(min(limit, choice.arm.length), choice.arm.stop)

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
        return self._alone(rest)

    def _alone(self, num_tokens: int) -> DraftPlan:
        self._due = num_tokens
        return DraftPlan(0, plain_tokens=num_tokens)

    def _draft(self, num_tokens: int, stop: float = 0.0, *, on_trial: bool = False) -> DraftPlan:
        rated = self._draft_statistics.rated
        return DraftPlan(num_tokens, stop, wants_log_probs=rated, on_trial=on_trial)


def _kind(copied: Draft) -> int:
    """Which copies it is to be compared with: those that as many tokens led to."""
    return min(max(1, copied.num_matching), len(COPY_ACCEPTANCE)) - 1
