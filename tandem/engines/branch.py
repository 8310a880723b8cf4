"""Drafting ahead: draft a branch for each likely outcome of a verification.

The Saguaro paper (arXiv:2603.03251) calls this speculating on the verification's outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tandem.engines.constraints import cut
from tandem.engines.engine import Branches, EngineRequest


class Branch:
    """One possible outcome of a verification, and the draft that follows it.

    The draft has the tokens that a plain draft call on the same text would return.

    Attributes:
        accepted: number of the call's draft tokens that are accepted in this outcome.
        token: the token that the target would add after them.
        rank: rank of `token` among the candidates for its position, from 0.
        limit: maximum number of tokens in the branch.
        tokens: the drafted tokens.
        log_probs: log-probability of each token under the draft model, with a stop probability.
        steps: number of tokens chosen so far. It includes a final token that ended the draft but
            isn't part of it.
        over: whether the draft has ended.

    """

    def __init__(self, plain_call: EngineRequest, accepted: int, token: int, rank: int) -> None:
        self.accepted = accepted
        self.token = token
        self.rank = rank
        self.tokens: list[int] = []
        self.steps = 0
        self.over = False
        self.limit = plain_call.max_new_tokens
        self.log_probs: list[float] = []
        self._plain = plain_call
        self._can_end = plain_call.end_id is not None or len(plain_call.stop_words) > 0

    def add(self, token: int, log_prob: float | None) -> None:
        """Add a drafted token, unless it ends the draft without being part of it.

        log_prob: None if the call has no stop probability.
        """
        self.steps += 1
        kept, ended = [token], False
        if self._can_end:
            kept, ended, _ = cut(self._plain, self.tokens, [token])
        if kept:
            self.tokens.append(token)
            if log_prob is not None:
                self.log_probs.append(log_prob)
        threshold = self._plain.draft_stop_probability
        unsure = threshold is not None and math.exp(sum(self.log_probs)) < threshold
        self.over = ended or unsure or len(self.tokens) >= self.limit

    def early(self, count: int) -> Branch:
        """Return the branch as it was after `count` steps."""
        early = Branch(self._plain, self.accepted, self.token, self.rank)
        early.steps = max(0, min(count, self.steps))
        early.tokens, early.log_probs = self.tokens[: early.steps], self.log_probs[: early.steps]
        early.over = self.over and count >= self.steps
        return early


def make_branches(
    request: EngineRequest, candidates: Callable[[int, int], Iterable[int]]
) -> list[Branch]:
    """Return the branches that a call requests; none after a token that ends the answer.

    candidates: called with a number of accepted draft tokens and a count; returns up to `count`
    tokens that may come next, most likely first.
    """
    assert request.branch_counts is not None
    drafts: list[int | None] = [*request.draft_ids.tolist(), None]
    ends = request.stop_words.single_ids | {request.end_id}
    branches: list[Branch] = []
    for accepted, (draft, count) in enumerate(zip(drafts, request.branch_counts, strict=True)):
        plain_call = request.plain_call(accepted)
        if count > 0 and plain_call.max_new_tokens > 0:
            # The draft token may be ranked too, but gets no branch.
            ranked = candidates(accepted, int(count) + (draft is not None))
            likely = [token for token in ranked if token != draft][:count]
            branches += [
                Branch(plain_call, accepted, token, rank)
                for rank, token in enumerate(likely)
                if token not in ends
            ]
        if draft in ends and draft is not None:
            break
    return branches


def fitting(branches: Sequence[Branch], max_branches: int, max_tokens: int) -> list[Branch]:
    """Return as many branches as fit, preferring those whose next token is most likely.

    max_tokens: capacity of the KV cache in tokens. The cache holds each branch's next token and its
    drafted tokens except the last. Each branch takes as much as the longest one, because all
    branches are stored in one rectangular array.
    """
    kept: list[Branch] = []
    longest = 0
    for branch in sorted(branches, key=lambda branch: (branch.rank, branch.accepted)):
        longest = max(longest, branch.limit)
        if len(kept) == max_branches or (len(kept) + 1) * longest > max_tokens:
            break
        kept.append(branch)
    return kept


def started_branches(branches: Sequence[Branch]) -> list[Branch]:
    """Return the branches that have started, in the order of the response."""
    begun = (branch for branch in branches if branch.tokens or branch.over)
    return sorted(begun, key=lambda branch: (branch.accepted, branch.rank))


def pack_branches(rows: Sequence[Branch]) -> Branches:
    shape = len(rows), max((len(branch.tokens) for branch in rows), default=0)
    ids = np.zeros(shape, np.int32)
    for i, branch in enumerate(rows):
        ids[i, : len(branch.tokens)] = branch.tokens
    outcomes = [(branch.accepted, branch.token) for branch in rows]
    lengths = [len(branch.tokens) for branch in rows]
    return Branches(np.array(outcomes, np.int32).reshape(-1, 2), ids, np.array(lengths, np.int32))
