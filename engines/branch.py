"""Drafting ahead: a branch after each likely outcome of a verification.

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
    """One outcome, and the draft after it: the same tokens as a plain draft call on that text.

    Attributes:
        accepted: number of the call's draft tokens that the outcome has.
        token: the next token, which the target would add.
        rank: of that token among the next tokens there, from 0.
        limit: most tokens that the branch may have.
        tokens: the draft.
        log_probs: the model's log-probability of each token, if the call asks for it.
        logits: what each token was drawn from, as the engine's own rows, if the call asks for it.
        steps: number of tokens that were chosen, including a last one that ended the draft and is
            not part of it.
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
        """Add a drafted token, unless it ends the draft without being part of it.

        probability: the model's own, if the call has a `draft_stop_probability`. log_prob, logits:
        if the call asks for them.
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
        """Return the branch as it was after ``count`` steps."""
        early = Branch(self._plain, self.accepted, self.token, self.rank)
        early.steps = max(0, min(count, self.steps))
        early.tokens, early.log_probs = self.tokens[: early.steps], self.log_probs[: early.steps]
        early.logits = self.logits[: early.steps]
        early.over = self.over and count >= self.steps
        return early


class Outcomes:
    """The outcomes for which a call requests branches."""

    def __init__(self, request: EngineRequest) -> None:
        assert request.branch_counts is not None
        self._request = request
        self._counts: list[int] = request.branch_counts.tolist()
        self._drafts: list[int] = request.draft_ids.tolist()
        self._ends = request.stop_words.single_ids | {request.end_id}

    @property
    def accepted_lengths(self) -> list[int]:
        """Accepted lengths that have branches; none after a draft token that ends the answer."""
        ends = (n for n, token in enumerate(self._drafts, 1) if token in self._ends)
        limit = next(ends, len(self._drafts) + 1)
        lengths = self._request.branch_output_len
        return [j for j in range(limit) if self._counts[j] > 0 and lengths[j] > 0]

    def num_candidates(self, accepted: int) -> int:
        """Return the number of candidates to rank: one may be the draft token, without a branch."""
        return self._counts[accepted] + (accepted < len(self._drafts))

    def branches(self, accepted: int, candidates: Iterable[int]) -> list[Branch]:
        """Return the branches after ``accepted`` tokens; candidates: next tokens, best first."""
        draft = self._drafts[accepted] if accepted < len(self._drafts) else None
        likely = [token for token in candidates if token != draft][: self._counts[accepted]]
        plain = self._request.plain(accepted)
        return [
            Branch(plain, accepted, token, rank)
            for rank, token in enumerate(likely)
            if token not in self._ends
        ]


def fitting(branches: Sequence[Branch], max_branches: int, max_tokens: int) -> list[Branch]:
    """Return as many branches as fit, preferring those with the most likely next tokens.

    max_tokens: room for logits, and for keys and values of each branch's next token and of all
    drafted tokens but the last. Branches lie side by side, so each takes as much as the longest.
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
    """Return the number of branch tokens whose logits fit, if the cache holds `room` tokens."""
    if not request.return_generation_logits:
        return room
    return min(room, MAX_BRANCH_LOGITS_BYTES // (4 * vocab_size))


def answered(branches: Sequence[Branch]) -> list[Branch]:
    """Return the branches that have started, in the order of the response."""
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
