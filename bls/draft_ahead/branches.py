"""Drafting ahead: while the target verifies a draft, the draft engine drafts what may follow.

A verification of the draft d_1..d_n ends in an **outcome**: the number j of accepted tokens and the
next token x. For a likely outcome, the draft engine drafts a **branch**: tokens that follow the
context, d_1..d_j and x. If the actual outcome has a branch (a **hit**), the next round's draft is
ready. Otherwise that round calls the draft engine as usual.

Drafting ahead changes how many tokens a draft has, never the tokens themselves: a branch holds the
tokens that a draft call after its outcome would have returned.

Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251; Liu et al., "PEARL",
arXiv:2408.11850.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from tandem.bls.draft_ahead.ahead_planner import AheadPlanner
from tandem.bls.draft_ahead.cost_model import UNLIMITED, AheadPlan, split
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.errors import EngineCallError
from tandem.bls.ports import (
    NO_DRAFT,
    NO_TOKENS,
    BranchDraft,
    Branching,
    Draft,
    DraftLogits,
    EngineCall,
    EngineResult,
    Engines,
)
from tandem.bls.request import Request, TokenIds
from tandem.bls.seeds import output_depends_on_lengths
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.contract.engine import MAX_BRANCH_LOGITS_BYTES


@dataclass(frozen=True)
class BranchesAhead:
    """The branches for the possible outcomes of one verification.

    start: number of context tokens before the verified draft. draft: that draft. logits: in logits
    mode, the handle to the logits of all branches.
    """

    start: int
    draft: TokenIds  # [num_draft_tokens]
    by_outcome: Mapping[tuple[int, int], BranchDraft]
    logits: DraftLogits = None

    def __len__(self) -> int:
        return len(self.by_outcome)

    def after(self, sequence: Sequence) -> BranchDraft | None:
        """Return the branch that continues exactly this sequence, or None."""
        new = sequence.context[self.start :]
        num_accepted = len(new) - 1
        if not 0 <= num_accepted <= len(self.draft):
            return None
        if not np.array_equal(new[:-1], self.draft[:num_accepted]):
            return None
        return self.by_outcome.get((num_accepted, int(new[-1])))


def index_by_outcome(start: int, draft: TokenIds, result: EngineResult) -> BranchesAhead:
    """Map outcomes to the branches of an engine's result. Leaves out empty branches."""
    by_outcome = {(b.num_accepted, b.next_token): b for b in result.branches if len(b.tokens)}
    return BranchesAhead(start, draft, by_outcome, result.draft_logits)


def plan_branches(
    sequence: Sequence, draft: TokenIds, plan: AheadPlan, room: int, acceptance: float
) -> Branching | None:
    """Return the branches to request for the outcomes of a draft, or None if none is possible.

    room: number of tokens that the draft engine can process after the context. acceptance:
    acceptance rate of the draft's tokens.
    """
    lengths = branch_lengths(sequence, draft, plan.num_tokens, room)
    wanted = tuple(length > 0 for length in lengths)
    counts = split(plan.num_branches, round(acceptance, 2), wanted)
    return Branching(counts, lengths) if sum(counts) else None


def branch_lengths(
    sequence: Sequence, draft: TokenIds, longest: int, room: int
) -> tuple[int, ...]:  # [num_draft_tokens + 1]
    """Return the maximum branch length after each accepted length (0: no branch).

    A branch has the same limit as a draft after the same outcome. Until ``min_tokens`` is reached,
    a call bans end-of-sequence tokens in every branch. So outcomes that would reach ``min_tokens``,
    where these tokens must be allowed, have no branch. No branch follows an end of sequence.
    """
    min_tokens_left = sequence.min_tokens_left
    end = sequence.find_eos(draft)
    lengths = []
    for num_accepted in range(len(draft) + 1):
        new = num_accepted + 1
        length = min(longest, sequence.draft_limit(new), room - new)
        reaches_min_tokens = 0 < min_tokens_left <= new
        beyond_end = end is not None and num_accepted > end
        lengths.append(0 if reaches_min_tokens or beyond_end else max(0, length))
    return tuple(lengths)


class DraftAhead:
    """Drafting ahead for one request.

    max_tokens: maximum number of tokens in all branches of one call. always: draft ahead even if it
    doesn't pay.
    """

    def __init__(self, planner: AheadPlanner, *, max_tokens: int = UNLIMITED, always: bool) -> None:
        self.planner = planner
        self._max_tokens = max_tokens
        self._always = always
        self._rounds = 0
        # The branches that are being drafted: the call's result, the maximum length of a branch,
        # the length of the call's context, and the draft that is being verified.
        self._drafting: tuple[Future[EngineResult], int, int, TokenIds] | None = None

    def plan(self, longest: int) -> AheadPlan | None:
        """Return a plan for branches of at most ``longest`` tokens (>= 1), or None.

        Call it at the start of each verification.
        """
        self.give_up()
        return self.planner.plan(longest, self._max_tokens, always=self._always)

    def start(
        self,
        sequence: Sequence,
        draft: Draft,
        plan: AheadPlan,
        call: EngineCall,
        *,
        room: int,
        engines: Engines,
    ) -> bool:
        """Start drafting branches for the outcomes of the verification of ``draft``.

        Returns whether a call began. call: draft engine call for the context before the draft.
        room: see `plan_branches`.
        """
        acceptance = self.planner.acceptance(draft.drafter)
        branching = plan_branches(sequence, draft.tokens, plan, room, acceptance)
        if branching is None:
            return False
        longest, unread = max(branching.lengths), self.planner.next_unread_logits()
        future = engines.call_ahead(
            call._replace(
                max_new_tokens=longest, draft=draft, branching=branching, unread_logits=unread
            )
        )
        if future is None:
            if unread is not None:
                self.planner.unread_logits.append(unread)
            return False

        def record(ended: Future[EngineResult]) -> None:
            if ended.exception() is None:
                count = sum(branching.counts)
                self.planner.record_branch_time(ended.result(), longest, count)

        future.add_done_callback(record)
        self._drafting = future, longest, len(call.context), draft.tokens
        return True

    def branch(
        self, sequence: Sequence, verifiable: Callable[[TokenIds], TokenIds], engines: Engines
    ) -> Draft:
        """Wait for the branches, at most as long as a new draft would take.

        Returns the branch for exactly this sequence, or an empty draft. verifiable: function that
        cuts drafted tokens to those that the target can verify in this round.
        """
        if self._drafting is None:
            return NO_DRAFT
        future, longest, start, drafted = self._drafting
        try:
            result = future.result(self.planner.seconds(longest))
        except futures.TimeoutError:  # not the built-in one before Python 3.11
            engines.stop_ahead()
            self.give_up()
            return NO_DRAFT
        except EngineCallError:
            self._drafting = None
            raise
        branches = index_by_outcome(start, drafted, result)
        branch = branches.after(sequence)
        tokens = NO_TOKENS if branch is None else verifiable(branch.tokens)
        if branch is None or not len(tokens):
            self.give_up()
            return Draft(num_branches=len(branches))
        self._drafting = None
        return Draft(
            tokens,
            branches.logits,
            branch.logits_row,
            drafter=DRAFT_MODEL.name,
            num_branches=len(branches),
            drafted_ahead=True,
            seconds_saved=self.planner.seconds(len(tokens)),
        )

    def give_up(self) -> None:
        """Drop the branches that are being drafted.

        Their logits stay in the draft engine's shared memory until a draft call returns the handle.
        """

        def return_unread(ended: Future[EngineResult]) -> None:
            if ended.exception() is None and ended.result().draft_logits is not None:
                self.planner.unread_logits.append(ended.result().draft_logits)

        if self._drafting is not None:
            self._drafting[0].add_done_callback(return_unread)
            self._drafting = None

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Record a round. The duration of the first one is ignored: it includes the prefill."""
        self._rounds += 1
        self.planner.record_acceptance(draft, num_accepted)
        if self._rounds > 1:
            self.planner.record_round_time(draft, seconds)


def make_draft_ahead(
    request: Request, settings: LoopSettings, planner: AheadPlanner | None
) -> DraftAhead | None:
    """Return the request's ``DraftAhead``, or None if it never drafts ahead.

    In logits mode the target needs a draft's logits. The logits of all branches are too large to
    send, so the engine must share memory. The output of a seeded request must not depend on which
    branches are ready in time. With a guide, branches would have to include forced tokens.
    """
    if planner is None or not settings.draft_branches or request.draft_ahead is False:
        return None
    if request.guide or output_depends_on_lengths(request, settings):
        return None
    max_tokens = UNLIMITED
    if request.use_draft_logits:
        if settings.draft is None or not settings.shared_logits:
            return None
        max_tokens = MAX_BRANCH_LOGITS_BYTES // (4 * settings.draft.vocab_size)
    return DraftAhead(planner, max_tokens=max_tokens, always=request.draft_ahead is True)
