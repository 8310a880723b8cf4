"""A running call that drafts branches after the possible outcomes of a verification."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.branch import (
    Branch,
    fitting,
    make_branches,
    pack_branches,
    started_branches,
)
from tandem.engines.engine import EngineRequest, EngineResponse, Floats, Respond
from tandem.engines.noise import Purpose, exponentials
from tandem.engines.stepping.kv_cache import BranchKV, BranchSegment, KVCache, Packed
from tandem.engines.stepping.sampling import CallSampler
from tandem.engines.stepping.sequence import CallSequence
from tandem.sampling.warping import likeliest, log_probs


class BranchingSequence(CallSequence):
    """Runs the draft tokens once, as in a verification, then all branches in parallel.

    The call's entry holds the context and the draft tokens and is kept for reuse. The branches'
    keys and values use free blocks, which are released when the call ends.
    """

    def __init__(
        self,
        request: EngineRequest,
        respond: Respond,
        sampler: CallSampler,
        cache: KVCache[Any],
        max_branches: int,
    ) -> None:
        self._cache = cache
        self._max_branches = max_branches
        self._branches: list[Branch] = []
        self._live: list[Branch] = []
        self._kv: BranchKV | None = None
        # Noise by position. Branches share it, so it is computed once.
        self._noise_at: dict[int, Floats] = {}
        self._unseen = 0  # number of live branches whose next token the model hasn't computed
        super().__init__(request, respond, sampler)

    @property
    def pending(self) -> int:
        return self._unseen if self._kv else super().pending

    @property
    def tail(self) -> int:
        return len(self._live) if self._kv else super().tail

    def next_tokens(self, count: int) -> NDArray[np.int64]:
        if self._kv is None:
            return super().next_tokens(count)
        tokens = [(branch.tokens or [branch.token])[-1] for branch in self._live]
        return np.array(tokens, np.int64)

    def segment(self, count: int) -> Packed:
        if self._kv is None:
            return super().segment(count)
        assert self.entry is not None
        return BranchSegment(self.entry, self._kv, self._leaves())

    def mark_computed(self, count: int) -> None:
        if self._kv is None:
            super().mark_computed(count)
            return
        self._computed += count
        self._kv.length += 1
        self._unseen = 0

    def advance(self, logits: Floats) -> bool:
        self._last_token_ns = time.time_ns()
        if self._kv is None:
            self._branch_out(logits)
        else:
            self._first_token_ns = self._first_token_ns or self._last_token_ns
            self._extend(logits)
        if not self._live:
            self.answer(final=True)
        return not self._live

    def answer(self, *, final: bool) -> None:
        branches = pack_branches(started_branches(self._branches))
        self._send(EngineResponse(final=final, usage=self._usage(), branches=branches))

    def _branch_out(self, logits: Floats) -> None:
        """Start as many branches as fit. logits: [k + 1, vocab_size]."""

        def candidates(accepted: int, count: int) -> list[int]:
            position, count = self.prompt_length + accepted, min(count, self._max_branches + 1)
            scores = self.sampler.process(logits[accepted], self.tokens[:position])
            return self._rank(scores, position, count)

        wanted = make_branches(self.request, candidates)
        assert self.entry is not None
        longest = max((branch.limit for branch in wanted), default=0)
        room = self._cache.branch_room(len(wanted), longest)
        self._branches = self._live = fitting(wanted, self._max_branches, room)
        if self._live:
            longest = max(branch.limit for branch in self._live)
            self._kv = self._cache.branch_kv(self.entry, self._leaves(), longest)
            self._unseen = len(self._live)

    def _extend(self, logits: Floats) -> None:
        """Add a token to each live branch; drop branches that end. logits: [live, vocab_size]."""
        wants_log_probs = self.request.draft_stop_probability is not None
        for branch, row in zip(self._live, logits, strict=True):
            scores = self.sampler.process(row, self._text(branch))
            if not scores.max() > -np.inf:  # all tokens are banned (a plain call would be rejected)
                branch.over = True
                continue
            token = int(self._weights(scores, self._end(branch)).argmax())
            log_prob = float(log_probs(row, [token])[0]) if wants_log_probs else None
            branch.add(token, log_prob)
        self._continue_live()

    def _rank(self, scores: Floats, position: int, count: int) -> list[int]:
        """Return up to `count` candidates for `position`, most likely first.

        scores: [vocab_size]. The noise that draft and target share is applied before ranking, so
        that the target's own token is among the best.
        """
        weights = self._weights(scores, position)
        best = likeliest(weights, count)
        never = -np.inf if self.sampler.greedy else 0.0
        ranked: list[int] = best[weights[best] > never].tolist()
        return ranked

    def _weights(self, scores: Floats, position: int) -> Floats:
        """Return weights [vocab_size]: a plain call's token is the one with the highest weight."""
        if self.sampler.greedy:
            return scores
        return self.sampler.probabilities(scores) / self._noise(position)

    def _noise(self, position: int) -> Floats:
        """Return the noise [vocab_size] that a plain call uses at that position."""
        if position not in self._noise_at:
            sampler = self.sampler
            self._noise_at[position] = exponentials(
                sampler.seed, position, Purpose.SAMPLE, sampler.vocab_size
            )
        return self._noise_at[position]

    def _continue_live(self) -> None:
        left = [i for i, branch in enumerate(self._live) if not branch.over]
        if 0 < len(left) < len(self._live):
            assert self._kv is not None
            self._kv.keep(left)
        self._live = [self._live[i] for i in left]
        self._unseen = len(left)

    def _leaves(self) -> NDArray[np.int64]:
        """Return the number of text tokens that each live branch attends to: [live]."""
        return np.array([self.prompt_length + branch.accepted for branch in self._live], np.int64)

    def _end(self, branch: Branch) -> int:
        return self.prompt_length + branch.accepted + 1 + len(branch.tokens)

    def _text(self, branch: Branch) -> NDArray[np.int64]:
        start = self.tokens[: self.prompt_length + branch.accepted]
        return np.concatenate((start, [branch.token, *branch.tokens]))
