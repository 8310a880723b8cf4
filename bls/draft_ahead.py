"""Drafting ahead: while the target verifies a draft, the draft engine drafts on behind it.

A verification ends in one of its **outcomes**: (accepted length j, next token x). An outcome names
the context of the next round, so it is the key of a **branch**: what the draft engine drafted
behind the context, d_1..d_j and x. If the outcome is among those that were foreseen, the next
round's draft is there at once: a **hit**. Else the round drafts as usual, only shorter, because
nothing else happens meanwhile.

What is in a draft never depends on it: a branch holds, token for token, what a draft call behind
its outcome would have brought.

Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251; Liu et al., "PEARL",
arXiv:2408.11850.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.ahead_trials import AheadTrials
from tandem.bls.drafter_registry import DRAFT_MODEL
from tandem.bls.effects import BranchDraft, Branching, Draft, EngineAnswer, StepSeconds
from tandem.bls.request import Request, TokenIds
from tandem.bls.round_times import LatencyModel
from tandem.bls.seeds import lengths_decide_text
from tandem.bls.sequence import Sequence
from tandem.bls.settings import MAX_HELPERS, LoopSettings

# Where the draft's first guess is wrong, the target's token is among its next F with probability
# 1 - (F + 1) ** -RANK_EXPONENT: measured on the demo pair, greedy.
RANK_EXPONENT = 0.67
BUDGETS = (4, 8, 16, 32, 64, 128)  # branches in one call
ALL_BRANCHES = 128  # of all sequences together; each has BUDGETS[0] at least
SLACK = 0.9  # of a verification, in which a call with branches should end
ADVANTAGE = 1.02  # of drafting ahead in tokens a second, before it is worth it
PLAN_EVERY = 16  # rounds of all requests: costs change slowly
MEMORY = 0.998  # how much of what was learned about acceptance outlives a round
PRIOR = (7.0, 10.0)  # tokens accepted, and verified, before the first round


class AheadPlan(NamedTuple):
    """How to draft ahead.

    num_tokens: of each branch. num_branches: in one call. on_miss: tokens of a draft for which
    no branch was there.
    """

    num_tokens: int
    num_branches: int
    on_miss: int


# While nobody knows what calls take.
FIRST_PLAN = AheadPlan(num_tokens=4, num_branches=BUDGETS[1], on_miss=4)


@dataclass(frozen=True)
class BranchesAhead:
    """The branches behind the outcomes of one verification.

    start: length of the context that the draft was verified behind.
    """

    start: int
    draft: TokenIds  # [num_draft_tokens]
    by_outcome: Mapping[tuple[int, int], TokenIds]

    def __len__(self) -> int:
        return len(self.by_outcome)

    def behind(self, sequence: Sequence) -> TokenIds | None:
        """Return what was drafted behind exactly this sequence; None: nobody foresaw it.

        The length alone would not tell: another token may stand where the verification ended.
        """
        new = sequence.context[self.start :]
        num_accepted = len(new) - 1
        if not 0 <= num_accepted <= len(self.draft):
            return None
        if not np.array_equal(new[:-1], self.draft[:num_accepted]):
            return None
        return self.by_outcome.get((num_accepted, int(new[-1])))


def branches_of(start: int, draft: TokenIds, branches: tuple[BranchDraft, ...]) -> BranchesAhead:
    """Return an engine's branches by their outcome; empty ones are none."""
    by_outcome = {(b.num_accepted, b.next_token): b.tokens for b in branches if len(b.tokens)}
    return BranchesAhead(start, draft, by_outcome)


def branching_of(
    sequence: Sequence, draft: TokenIds, plan: AheadPlan, room: int, acceptance: float
) -> Branching | None:
    """Return which branches to ask for behind a draft; None where there can be none.

    room: tokens that the draft engine can take behind the context.
    """
    lengths = lengths_of(sequence, draft, plan.num_tokens, room)
    wanted = tuple(length > 0 for length in lengths)
    counts = split(plan.num_branches, round(acceptance, 2), wanted)
    return Branching(counts, lengths) if sum(counts) else None


def lengths_of(
    sequence: Sequence, draft: TokenIds, longest: int, room: int
) -> tuple[int, ...]:  # [num_draft_tokens + 1]
    """How long a branch may be behind each accepted length; 0: there is none.

    Each has the limit that a draft will have there. While ``min_tokens`` is owed, the engine bans
    ends of sequence in all of a call: what lies beyond must not be drafted under the ban. Behind an
    end of sequence nothing follows.
    """
    banned = sequence.min_tokens_left
    end = sequence.first_end(draft)
    lengths = []
    for num_accepted in range(len(draft) + 1):
        new = num_accepted + 1
        length = min(longest, sequence.draft_limit_behind(new), room - new)
        beyond_ban = 0 < banned <= new
        beyond_end = end is not None and num_accepted > end
        lengths.append(0 if beyond_ban or beyond_end else max(0, length))
    return tuple(lengths)


@lru_cache(4096)
def split(budget: int, acceptance: float, wanted: tuple[bool, ...]) -> tuple[int, ...]:
    """Return how many branches to draft behind each accepted length, [num_draft_tokens + 1].

    As many in all as ``budget``, where any are wanted. They maximize the chance of a hit,

        sum over j of P(j) * (1 - (F_j + 1) ** -r),  P(j) = a ** j * (1 - a)

    which has F_j + 1 in proportion to a ** (j / (1 + r)). Behind the whole draft the first guess,
    right with probability a, is a candidate too: there it is F_j.
    """
    places = np.arange(len(wanted))
    weights = np.where(wanted, acceptance ** (places / (1 + RANK_EXPONENT)), 0.0)
    excluded = np.where(places < len(wanted) - 1, 1.0, 0.0)  # the draft's own next token
    ideal = _at_least_none(weights, excluded, budget)
    counts = np.floor(ideal).astype(int)
    rest = np.argsort(counts - ideal, kind="stable")[: budget - counts.sum()]
    counts[rest] += 1
    return tuple(np.where(wanted, counts, 0).tolist())


def _at_least_none(
    weights: NDArray[np.float64], excluded: NDArray[np.float64], budget: int
) -> NDArray[np.float64]:
    """Return scale * weights - excluded, 0 where that is less, so that the sum is ``budget``."""
    chosen = weights > 0
    while chosen.any():
        scale = (budget + excluded[chosen].sum()) / weights[chosen].sum()
        counts = np.where(chosen, scale * weights - excluded, 0.0)
        if (counts >= 0).all():
            return counts
        chosen &= counts >= 0
    return np.zeros(len(weights))


def hit_chance(num_tokens: int, num_branches: int, acceptance: float) -> float:
    """Return how probable it is that the outcome of a draft of that length was foreseen."""
    counts = np.array(split(num_branches, acceptance, (True,) * (num_tokens + 1)))
    reached = acceptance ** np.arange(num_tokens + 1)
    found = 1 - (counts[:-1] + 1.0) ** -RANK_EXPONENT
    hits = float((reached[:-1] * (1 - acceptance) * found).sum())
    if counts[-1]:
        hits += float(reached[-1] * (1 - (1 - acceptance) * counts[-1] ** -RANK_EXPONENT))
    return hits


def emitted(num_tokens: int, acceptance: float) -> float:
    """Return how many tokens a round with such a draft emits on average."""
    return (1 - acceptance ** (num_tokens + 1)) / (1 - acceptance)


class Costs(NamedTuple):
    """What calls take, in seconds: each pair is what is fixed, and what each adds to it."""

    target: tuple[float, float]  # a verification; each draft token
    step: tuple[float, float]  # one of the draft engine's; each branch
    way: float  # of a draft call: to the engine and back

    def verification(self, num_tokens: int) -> float:
        """Seconds to verify a draft."""
        return self.target[0] + self.target[1] * num_tokens

    def draft(self, num_tokens: int) -> float:
        """Seconds of an ordinary draft call."""
        return self.way + num_tokens * (self.step[0] + self.step[1])

    def fitting(self, longest: int, num_branches: int) -> int:
        """How many tokens so many branches may have to be there when the target answers."""
        step = self.step[0] + self.step[1] * num_branches
        spare = SLACK * self.verification(longest) - self.way
        return min(longest, max(0, int(spare / step) - 1))


def best_plan(
    costs: Costs, acceptance: float, longest: int, most_branches: int
) -> tuple[AheadPlan, float]:
    """Return the plan that promises most tokens a second, and how many times those without it.

    Hits are verified at once; a miss waits for a draft first. Where no branch would be there in
    time, the plan is the least that can be done, and promises nothing.
    """
    best, most = AheadPlan(1, BUDGETS[0], longest), 0.0
    for budget in BUDGETS:
        if budget > max(most_branches, BUDGETS[0]):
            break
        num_tokens = costs.fitting(longest, budget)
        hits = hit_chance(num_tokens, budget, acceptance)
        for on_miss in range(1, num_tokens + 1):
            tokens = hits * emitted(num_tokens, acceptance)
            tokens += (1 - hits) * emitted(on_miss, acceptance)
            seconds = hits * costs.verification(num_tokens)
            seconds += (1 - hits) * (costs.verification(on_miss) + costs.draft(on_miss))
            if tokens / seconds > most:
                most, best = tokens / seconds, AheadPlan(num_tokens, budget, on_miss)
    without = max(
        emitted(n, acceptance) / (costs.verification(n) + costs.draft(n))
        for n in range(1, longest + 1)
    )
    return best, most / without


class AheadStatistics:
    """What all requests of a deployment have learned about drafting ahead. Thread-safe.

    running: how many sequences decode now. They share the engines.
    """

    def __init__(self, settings: LoopSettings, running: Callable[[], int] = lambda: 1) -> None:
        self._shares_device = settings.engines_share_device
        self._running = running
        self._lock = threading.Lock()
        self._accepted: dict[str, NDArray[np.float64]] = {}  # by drafter: [accepted, verified]
        self._target = LatencyModel(through_zero=False)  # by draft tokens
        self._step = LatencyModel(through_zero=False)  # of the draft engine, by branches
        self._way = LatencyModel(through_zero=False)  # of a draft call
        # By the longest draft: the round in which it was made, the plan, its advantage.
        self._plans: dict[int, tuple[int, AheadPlan, float]] = {}
        self._trials = AheadTrials()
        self._rounds = 0

    def acceptance(self, drafter: str) -> float:
        """Return how probable it is that the next draft token is accepted, if all before were."""
        accepted, verified = self._accepted.get(drafter, PRIOR)
        return float(np.clip(accepted / verified, 0.05, 0.98))

    def seconds(self, num_tokens: int) -> float:
        """Return how long a draft call for so many tokens takes; 0 where nobody knows."""
        with self._lock:
            costs = self._costs()
        return costs.draft(num_tokens) if costs else 0.0

    def verified(self, draft: Draft, num_accepted: int) -> None:
        """Learn from a draft that was verified."""
        decided = min(num_accepted + 1, len(draft))
        with self._lock:
            known = self._accepted.get(draft.drafter, np.array(PRIOR))
            self._accepted[draft.drafter] = MEMORY * known + (num_accepted, decided)
            self._rounds += 1

    def timed(self, draft: Draft, num_accepted: int, seconds: StepSeconds, *, ahead: bool) -> None:
        """Learn what a round took. What its draft did not take is time to draft ahead in.

        ahead: whether branches were drafted meanwhile.
        """
        answer = draft.answer
        with self._lock:
            self._trials.observe(self._running(), num_accepted + 1, seconds.whole, ahead=ahead)
            self._target.add(len(draft), seconds.whole - (answer.seconds if answer else 0.0))
            if answer is not None and len(answer.tokens):
                self._add_call(answer, len(answer.tokens), 1)

    def timed_branches(self, answer: EngineAnswer, num_tokens: int, num_branches: int) -> None:
        """Learn what a call took that was to draft so many branches of so many tokens.

        One that was stopped, because it was late, would have taken longer still. One that found no
        memory for branches says nothing.
        """
        with self._lock:
            costs = self._costs()
            late = costs is not None and answer.seconds > costs.verification(0)
            if answer.branches or late:
                self._add_call(answer, num_tokens + 1, num_branches)

    def plan(self, longest: int, *, always: bool) -> AheadPlan | None:
        """Decide; None: it does not pay.

        longest: tokens (>= 1) that a draft may have. always: only how, not whether.
        """
        if not always and (self._shares_device or self._running() > MAX_HELPERS):
            return None
        with self._lock:
            made, plan, advantage = self._plans.get(longest, (-PLAN_EVERY, None, 0.0))
            if plan is None or self._rounds - made >= PLAN_EVERY:
                costs = self._costs()
                if costs is None:
                    return FIRST_PLAN._replace(num_tokens=min(longest, FIRST_PLAN.num_tokens))
                acceptance, share = self.acceptance(DRAFT_MODEL.name), self._share
                plan, advantage = best_plan(costs, acceptance, longest, share)
                self._plans[longest] = self._rounds, plan, advantage
            pays = advantage > ADVANTAGE and self._trials.allow(self._running())
        return plan if always or pays else None

    @property
    def _share(self) -> int:
        """Branches that a sequence may ask for: the more of them decode, the fewer each."""
        return ALL_BRANCHES // max(1, self._running())

    def _costs(self) -> Costs | None:
        """Return what calls take; None where nobody knows yet."""
        if not (self._target.known and self._step.known):
            return None
        costs = Costs(self._target.fit(), self._step.fit(), self._way.fit()[0])
        return costs if costs.verification(1) > 0 and sum(costs.step) > 0 else None

    def _add_call(self, answer: EngineAnswer, steps: int, num_branches: int) -> None:
        working = answer.engine_seconds or answer.seconds
        self._step.add(num_branches, working / steps)
        self._way.add(1, max(0.0, answer.seconds - working))


class DraftAhead:
    """Drafting ahead for one request: whether and how, round by round.

    longest: tokens of a draft. always: wherever it is possible; else where it pays.
    """

    def __init__(self, statistics: AheadStatistics, longest: int, *, always: bool) -> None:
        self.statistics = statistics
        self.refused = False  # by the draft engine: for this request never again
        self._longest = longest
        self._always = always
        self._rounds = 0

    @property
    def plan(self) -> AheadPlan | None:
        """How to draft ahead now; None: not at all."""
        return None if self.refused else self.statistics.plan(self._longest, always=self._always)

    @property
    def timeout(self) -> float:
        """How many seconds to wait for branches that are late: no longer than for a new draft."""
        plan = self.plan
        return 0.0 if plan is None else self.statistics.seconds(plan.on_miss)

    def verified(
        self, draft: Draft, num_accepted: int, seconds: StepSeconds, *, ahead: bool
    ) -> None:
        """Learn from a round; the first one's times are those of the prompt.

        ahead: whether branches were drafted meanwhile.
        """
        self._rounds += 1
        self.statistics.verified(draft, num_accepted)
        if self._rounds > 1:
            self.statistics.timed(draft, num_accepted, seconds, ahead=ahead)


def draft_ahead_of(
    request: Request, settings: LoopSettings, statistics: AheadStatistics | None
) -> DraftAhead | None:
    """Return how a request's drafts are made ahead, or None where they never are.

    Comparing probabilities, the target needs the logits of a draft, and no engine keeps those of
    every branch. A text that a seed is to repeat must not depend on what is there in time. And what
    a guide forces behind an outcome would have to be in the branch behind it.
    """
    possible = settings.draft_branches and request.draft_ahead is not False
    if statistics is None or not possible or request.use_draft_logits or request.guide:
        return None
    if lengths_decide_text(request, settings):
        return None
    always = request.draft_ahead is True
    return DraftAhead(statistics, request.longest_proposal, always=always)
