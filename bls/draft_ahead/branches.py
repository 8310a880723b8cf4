"""Drafting ahead: while the target verifies a draft, the draft engine drafts on behind it.

A verification ends in one of its **outcomes**: (accepted length j, next token x). An outcome names
the context of the next round, so it is the key of a **branch**: what the draft engine drafted
behind the context, d_1..d_j and x. If the outcome is among those that were foreseen, the next
round's draft is there at once: a **hit**. Else the round drafts as usual, only shorter, because
nothing else happens meanwhile.

The tokens of a draft never depend on it, only how many there are: a branch holds, token for token,
what a draft call behind its outcome would have brought.

Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251; Liu et al., "PEARL",
arXiv:2408.11850.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.bls.draft_ahead.ahead_planner import AheadPlanner
from tandem.bls.draft_ahead.cost_model import MOST_TOKENS, AheadPlan, split
from tandem.bls.effects import BranchDraft, Branching, Draft, EngineAnswer, StepSeconds
from tandem.bls.exactness.seeds import lengths_decide_text
from tandem.bls.request import Request, TokenIds
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.contract.engine import MAX_BRANCH_LOGITS_BYTES


@dataclass(frozen=True)
class BranchesAhead:
    """The branches behind the outcomes of one verification.

    start: length of the context that the draft was verified behind. logits: of all branches, in
    logits mode: the handle to where the draft engine shares them.
    """

    start: int
    draft: TokenIds  # [num_draft_tokens]
    by_outcome: Mapping[tuple[int, int], BranchDraft]
    logits: Any = None

    def __len__(self) -> int:
        return len(self.by_outcome)

    def behind(self, sequence: Sequence) -> BranchDraft | None:
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


def branches_of(start: int, draft: TokenIds, answer: EngineAnswer) -> BranchesAhead:
    """Return an engine's branches by their outcome; empty ones are none."""
    by_outcome = {(b.num_accepted, b.next_token): b for b in answer.branches if len(b.tokens)}
    return BranchesAhead(start, draft, by_outcome, answer.logits)


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


class BranchLogits:
    """The logits of one call's branches, which the draft engine shares until somebody reads them.

    unread: handles of such that nobody will read, of all requests; the next draft call gives one
    back. Another thread than the one that gives them up may bring them.
    """

    def __init__(self, unread: deque[Any]) -> None:
        self._unread = unread
        self._handle: Any = None
        self._given_up = False

    def came(self, handle: Any) -> None:
        """Note where they are; None: there are none."""
        self._handle = handle
        self._hand_over()

    def give_up(self) -> None:
        """Note that nobody will read them."""
        self._given_up = True
        self._hand_over()

    def _hand_over(self) -> None:
        if self._given_up and self._handle is not None:
            self._unread.append(self._handle)


class DraftAhead:
    """Drafting ahead for one request: whether and how, round by round.

    most: tokens of all branches together. always: wherever it is possible, not only if it pays.
    """

    def __init__(self, statistics: AheadPlanner, *, most: int = MOST_TOKENS, always: bool) -> None:
        self.statistics = statistics
        self.refused = False  # by the draft engine: for this request never again
        self._most = most
        self._always = always
        self._rounds = 0

    def plan(self, longest: int) -> AheadPlan | None:
        """Plan branches; None: don't draft ahead now. longest: tokens (>= 1) of a branch."""
        if self.refused:
            return None
        return self.statistics.plan(longest, self._most, always=self._always)

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Learn from a round. The first one's times include the prompt's."""
        self._rounds += 1
        self.statistics.verified(draft, num_accepted)
        if self._rounds > 1:
            self.statistics.timed(draft, seconds)


def draft_ahead_of(
    request: Request, settings: LoopSettings, statistics: AheadPlanner | None
) -> DraftAhead | None:
    """Return how a request's drafts are made ahead, or None where they never are.

    Comparing probabilities, the target needs the logits of a draft: those of all branches are too
    many to be sent, so they must be shared in memory. A text that a seed is to repeat must not
    depend on what is there in time. And what a guide forces behind an outcome would have to be in
    the branch behind it.
    """
    if statistics is None or not settings.draft_branches or request.draft_ahead is False:
        return None
    if request.guide or lengths_decide_text(request, settings):
        return None
    most = MOST_TOKENS
    if request.use_draft_logits:
        if settings.draft is None or not settings.shared_logits:
            return None
        most = MAX_BRANCH_LOGITS_BYTES // (4 * settings.draft.vocab_size)
    return DraftAhead(statistics, most=most, always=request.draft_ahead is True)
