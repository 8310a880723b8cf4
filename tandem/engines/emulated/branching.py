"""A running call that drafts branches after the possible outcomes of a verification."""

from __future__ import annotations

import math
from itertools import accumulate, islice

import numpy as np

from tandem.engines.branch import (
    Branch,
    fitting,
    logits_room,
    make_branches,
    pack_branches,
    started_branches,
)
from tandem.engines.emulated.call import EmulatedCall
from tandem.engines.emulated.language import Language
from tandem.engines.emulated.row import dense
from tandem.engines.emulated.sampler import EmulatedSampler
from tandem.engines.engine import Respond
from tandem.engines.errors import RequestError
from tandem.engines.request import MAX_BRANCHES, CallUsage, EngineRequest, EngineResponse, Ids


class EmulatedBranchingCall(EmulatedCall):
    """A call that takes one step for the draft tokens, then one per token of the longest branch."""

    def __init__(
        self,
        request: EngineRequest,
        respond: Respond,
        languages: tuple[Language, Language],
        usage: CallUsage,
        *,
        max_tokens: int,
        begin_ns: int,
    ) -> None:
        """languages: the draft's and the target's. max_tokens: limit for all branches together."""
        own, target = languages
        sampler = EmulatedSampler(request, own)
        super().__init__(request, respond, sampler, usage, begin_ns=begin_ns)
        self._language = own
        self._target = EmulatedSampler(request, target)
        self._max_tokens = logits_room(request, own.vocab_size, max_tokens)
        self._branches: list[Branch] = []
        self.over = True

    @property
    def rows(self) -> int:
        """Number of tokens that the call's widest step computes."""
        return max(len(self.request.draft_ids) + 1, len(self._branches))

    @property
    def cached_text(self) -> Ids:
        """The text whose KV cache the engine keeps: [context + draft tokens]."""
        return np.concatenate((self.request.input_ids, self.request.draft_ids))

    def prepare(self) -> None:
        drafts = self.request.draft_ids.tolist()
        after, targets = (
            list(accumulate(drafts, EmulatedSampler.after, initial=sampler))
            for sampler in (self._sampler, self._target)
        )

        def candidates(accepted: int, count: int) -> list[int]:
            return self._candidates(after[accepted], targets[accepted], count)

        wanted = make_branches(self.request, candidates)
        self._branches = fitting(wanted, MAX_BRANCHES, self._max_tokens)
        for branch in self._branches:
            sampler = after[branch.accepted].after(branch.token)
            while not branch.over:
                try:
                    token = sampler.next()
                except RequestError:  # every token is banned
                    branch.over = True
                else:
                    branch.add(token.id, math.log(token.probability), token.row)
        rows = [row for branch in started_branches(self._branches) for row in branch.logits]
        self._logits = dense(rows, self._sampler.vocab_size) if rows else None
        self._steps = 1 + max((branch.steps for branch in self._branches), default=0)
        self.computed_tokens += len(drafts) + sum(branch.steps for branch in self._branches)

    def stop(self, now_ns: int) -> None:
        """Keep only the tokens that the branches have at `now_ns`."""
        self._logits = None  # the caller wouldn't read them
        if self._end_steps(now_ns):
            self._branches = [branch.early(self._steps - 1) for branch in self._branches]

    def answer(self, now_ns: int) -> None:
        self._last_token_ns = self._wall_ns(max(now_ns, self.due_ns))
        self._first_token_ns = self._wall_ns(self._begin_ns + min(self._steps, 2) * self._step_ns)
        branches = started_branches(self._branches)
        self._deliver(
            EngineResponse(
                usage=self._final_usage()._replace(draft_tokens=0),  # the call verifies no drafts
                branches=pack_branches(branches, with_log_probs=self.request.return_log_probs),
                generation_logits=self._logits,
            )
        )

    def _candidates(self, own: EmulatedSampler, target: EmulatedSampler, count: int) -> list[int]:
        """Return up to `count` guesses for the next token, or none if every token is banned."""
        by_noise = not self.request.return_generation_logits
        try:
            first, truth = own.peek(by_noise=by_noise), target.peek(by_noise=by_noise)
        except RequestError:
            return []
        guesses = self._language.alternatives(own.text, first, truth)
        return list(islice(filter(own.allows, guesses), count))
