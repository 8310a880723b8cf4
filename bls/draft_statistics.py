"""What all requests of a deployment have learned about drafts, and what trials may cost.

An arm is a longest length and a probability: the draft model stops by itself as soon as it finds it
less probable that all its tokens so far are right. A round that drafted n tokens and had m accepted
shows what every arm would have drafted and emitted there: a shorter one exactly, a longer one up to
its end and by averages from there. So all arms learn from every round, and what an arm earns is

    tokens a second = tokens a round / (seconds of a round, given the tokens drafted in it)

where the seconds are learned from the rounds themselves (``bls.round_times``): they rise with the
load, and the choice follows.

Source of the trade-off: Leviathan et al., arXiv:2211.17192, section 3.3; of stopping by the draft's
own confidence: Hugging Face's assisted generation.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from tandem.bls.arms import STOP_PROBABILITIES, Arm, Arms, RoundEarnings
from tandem.bls.chunk_size import MOST_TOKENS
from tandem.bls.drafter_registry import DRAFT_MODEL, PROMPT_LOOKUP
from tandem.bls.effects import Draft, StepSeconds
from tandem.bls.load_trials import LoadTrials
from tandem.bls.other_loops import Decisions
from tandem.bls.round_times import PlainTimes, RoundTimes

FIRST_ROUNDS = 2  # verified drafts, before lengths follow from them
SETTLED_ROUNDS = 200  # of all requests, after which some are not learned from
MOST_IN_TURN = 8  # requests that begin, of which one learns from its second round too
# Sequences that choose, for each choice that is learned from. Where so many decode, all of them
# learn enough from some; to ask the draft model for probabilities takes processors' time.
SEQUENCES_A_CHOICE = 16
MOST_CHOICES = 4  # of which one is learned from
BEFORE_TRIAL = 64  # tokens of each sequence: where drafts do not pay, each of them costs
SHARE = 0.003  # of all time, that each kind of trial may cost
LEAST_PRICE = 0.1  # of what a trial lasts
MOST_SAVED = 0.5  # seconds: trials that were not made are not made up for at once
# How often a copied token is accepted that 1, 2, 3, 4 or more tokens led to, until it is known.
COPY_ACCEPTANCE = (0.3, 0.6, 0.7, 0.8)
COPY_CONFIDENCE = 2.0  # rounds


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

    def plain_piece(self, num_tokens: int) -> int:
        """Tokens for the target alone, in the time that so many take with drafts, or fewer.

        Somebody waits for an answer in which this is tried.
        """
        return math.ceil(num_tokens * min(1.0, self.alone / self.arm.rate))


class RequestEarnings:
    """What one request has learned: by its model's drafts, and by copies of each kind.

    from_second_round: whether it learns from that round too, whose time is not that of the prompt.
    """

    def __init__(
        self, drafts: RoundEarnings, copies: list[RoundEarnings], *, from_second_round: bool
    ) -> None:
        self.drafts, self.copies = drafts, copies
        self.from_second_round = from_second_round


class DraftStatistics:
    """What all requests of a deployment have learned about drafts. Thread-safe.

    rated: the draft model returns the probability of each token and can stop by it. running: how
    many sequences decode now. decisions: whether they draft at all.
    """

    def __init__(
        self,
        max_draft_len: int,
        running: Callable[[], int] = lambda: 1,
        decisions: Decisions | None = None,
        *,
        rated: bool,
    ) -> None:
        self.rated = rated
        self.max_draft_len = max_draft_len
        self.drafts = Arms(max_draft_len, STOP_PROBABILITIES if rated else (0.0,))
        self.copies = [
            Arms(max_draft_len, (0.0,), acceptance=rate, confidence=COPY_CONFIDENCE)
            for rate in COPY_ACCEPTANCE
        ]
        self.round_times = RoundTimes(running)
        self.plain_times = PlainTimes(running)
        self._drafts_budget, self._plain_budget = TrialBudget(), TrialBudget()
        self._plain_sampled = False
        self._requests, self._choices = itertools.count(), itertools.count()
        self._running = running
        self._trials = LoadTrials(decisions, first=True, first_of_each=BEFORE_TRIAL)
        self._lock = threading.Lock()

    def of_a_request(self) -> RequestEarnings:
        """Return what a request has learned that begins.

        Of many that decode at once some learn from their second round too, in turn: answers may be
        so short that this is one of few, and to learn takes a processor's time.
        """
        turn = next(self._requests) % min(max(1, self._running()), MOST_IN_TURN)
        return RequestEarnings(
            self.drafts.of_a_request(),
            [arms.of_a_request() for arms in self.copies],
            from_second_round=turn == 0,
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
    def on_trial(self) -> bool:
        """Whether sequences may soon draft where they may not now, or the other way round."""
        return self._trials.on_trial(self._running())

    @property
    def longest_piece(self) -> int:
        """Tokens that the target may decode alone before it is asked again whether they may."""
        return self._trials.longest_piece(self._running(), MOST_TOKENS)

    def observe(self, tokens: int, seconds: float, *, allowed: bool) -> None:
        """Count a round for the trial under way. allowed: whether drafts were, as it began."""
        self._trials.observe(self._running(), tokens, seconds, allowed=allowed)

    def count(self, tokens: int) -> bool:
        """Count a round outside of trials: they do not begin before some have passed.

        Returns False in a trial, where it has to be observed.
        """
        return self._trials.count(self._running(), tokens)

    @property
    def settled(self) -> bool:
        """Whether so much is known that not every round has to be learned from."""
        return self.drafts.all.rounds >= SETTLED_ROUNDS

    def learns_in_turn(self) -> bool:
        """Whether the round of this choice is one to learn from, among those of many sequences."""
        turns = min(max(1, self._running() // SEQUENCES_A_CHOICE), MOST_CHOICES)
        return next(self._choices) % turns == 0

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

    def best_copy(self, own: RequestEarnings, copied: Draft) -> Arm:
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


def _kind(copied: Draft) -> int:
    """Which copies it is to be compared with: those that as many tokens led to."""
    return min(max(1, copied.num_matching), len(COPY_ACCEPTANCE)) - 1
