"""Drafting ahead: what goes on behind each outcome that a verification may have.

Saguaro (arXiv:2603.03251) calls it speculating on the verification's outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tandem.contract.engine import MAX_BRANCH_LOGITS_BYTES
from tandem.engines.ending import cut
from tandem.engines.request import Branches, EngineRequest


class Branch:
    """One outcome, and the draft behind it: token for token a plain draft call on that text.

    Attributes:
        accepted: how many of the call's draft tokens the outcome has.
        token: the next one, which the target would add.
        rank: its place among the next tokens there, from 0.
        limit: the most tokens that it may have.
        tokens: what was drafted behind it.
        log_probs: how likely the model finds each of them, where the call wants it.
        logits: what each of them was drawn from, where the call wants it: rows of the engine's own.
        steps: how many tokens were chosen; one more where the last ended the draft and is no
            part of it.
        over: whether the draft has ended.

    """

    def __init__(self, plain: EngineRequest, accepted: int, token: int, rank: int) -> None:
        self.accepted = accepted
        self.token = token
        self.rank = rank
        self.tokens: list[int] = []
        self.logits: list[Any] = []
        self.steps = 0
        self.over = False
        self.limit = plain.max_new_tokens
        self.log_probs: list[float] = []
        self._plain = plain
        self._can_end = plain.end_id is not None or len(plain.stop_words) > 0
        self._joint_probability = 1.0

    def take(
        self, token: int, probability: float | None, log_prob: float | None, logits: Any = None
    ) -> None:
        """Add a drafted token, unless it ends the draft and is no part of it.

        probability: the model's own, where the call has a `draft_stop_probability`. log_prob,
        logits: where the call wants them.
        """
        self.steps += 1
        kept, ended = [token], False
        if self._can_end:
            kept, ended, _ = cut(self._plain, self.tokens, [token])
        if kept:
            self.tokens.append(token)
            if log_prob is not None:
                self.log_probs.append(log_prob)
            if logits is not None:
                self.logits.append(logits)
            if probability is not None:
                self._joint_probability *= probability
        least = self._plain.draft_stop_probability
        unsure = least is not None and self._joint_probability < least
        self.over = ended or unsure or len(self.tokens) >= self.limit

    def early(self, count: int) -> Branch:
        """Return the branch as it was after so many steps."""
        early = Branch(self._plain, self.accepted, self.token, self.rank)
        early.steps = max(0, min(count, self.steps))
        early.tokens, early.log_probs = self.tokens[: early.steps], self.log_probs[: early.steps]
        early.logits = self.logits[: early.steps]
        early.over = self.over and count >= self.steps
        return early


class Outcomes:
    """For which outcomes a call wants branches."""

    def __init__(self, request: EngineRequest) -> None:
        assert request.branch_counts is not None
        self._request = request
        self._counts: list[int] = request.branch_counts.tolist()
        self._drafts: list[int] = request.draft_ids.tolist()
        self._ends = request.stop_words.single_ids | {request.end_id}

    @property
    def accepted_lengths(self) -> list[int]:
        """Those with branches; none behind a draft token that ends the answer."""
        ends = (n for n, token in enumerate(self._drafts, 1) if token in self._ends)
        limit = next(ends, len(self._drafts) + 1)
        lengths = self._request.branch_output_len
        return [j for j in range(limit) if self._counts[j] > 0 and lengths[j] > 0]

    def num_candidates(self, accepted: int) -> int:
        """How many candidates are enough there: one may be the draft token, which is no outcome."""
        return self._counts[accepted] + (accepted < len(self._drafts))

    def branches(self, accepted: int, candidates: Iterable[int]) -> list[Branch]:
        """Return those there, for next tokens with the likeliest first."""
        draft = self._drafts[accepted] if accepted < len(self._drafts) else None
        likely = [token for token in candidates if token != draft][: self._counts[accepted]]
        plain = self._request.plain(accepted)
        return [
            Branch(plain, accepted, token, rank)
            for rank, token in enumerate(likely)
            if token not in self._ends
        ]


def fitting(branches: Sequence[Branch], max_branches: int, max_tokens: int) -> list[Branch]:
    """Return as many as there is room for, those of the likeliest next tokens first.

    max_tokens: room for keys and values, of each branch's next token and all drafted but the last,
    and for logits. Each branch takes as much of it as the longest: they lie side by side.
    """
    kept: list[Branch] = []
    longest = 0
    for branch in sorted(branches, key=lambda branch: (branch.rank, branch.accepted)):
        longest = max(longest, branch.limit)
        if len(kept) == max_branches or (len(kept) + 1) * longest > max_tokens:
            break
        kept.append(branch)
    return kept


def logits_room(request: EngineRequest, vocab_size: int, room: int) -> int:
    """Return for how many tokens of branches there is room, if `room` is what the cache has."""
    if not request.return_generation_logits:
        return room
    return min(room, MAX_BRANCH_LOGITS_BYTES // (4 * vocab_size))


def answered(branches: Sequence[Branch]) -> list[Branch]:
    """Return those that have begun, in the order of an answer."""
    begun = (branch for branch in branches if branch.tokens or branch.over)
    return sorted(begun, key=lambda branch: (branch.accepted, branch.rank))


def joined(rows: Sequence[Branch], *, with_log_probs: bool) -> Branches:
    shape = len(rows), max((len(branch.tokens) for branch in rows), default=0)
    ids = np.zeros(shape, np.int32)
    log_probs = np.zeros(shape, np.float32) if with_log_probs else None
    for i, branch in enumerate(rows):
        ids[i, : len(branch.tokens)] = branch.tokens
        if log_probs is not None:
            log_probs[i, : len(branch.tokens)] = branch.log_probs
    outcomes = [(branch.accepted, branch.token) for branch in rows]
    lengths = [len(branch.tokens) for branch in rows]
    return Branches(
        np.array(outcomes, np.int32).reshape(-1, 2), ids, np.array(lengths, np.int32), log_probs
    )
