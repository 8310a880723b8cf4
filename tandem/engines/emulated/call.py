"""State of one running call, which may draft branches after the outcomes of a verification."""

from __future__ import annotations

import math
import threading
from itertools import accumulate, islice

import numpy as np

from tandem.engines.branch import (
    Branch,
    fitting,
    make_branches,
    pack_branches,
    started_branches,
)
from tandem.engines.constraints import cut
from tandem.engines.emulated.language import FLOOR, Language, dense
from tandem.engines.emulated.sampler import EmulatedSampler, Token
from tandem.engines.engine import (
    MAX_BRANCHES,
    CallUsage,
    EngineRequest,
    EngineResponse,
    Floats,
    Ids,
    Respond,
    deliver,
)
from tandem.engines.errors import EngineError, RequestError


class EmulatedCall:
    """A call's tokens, their times, and the answers prepared so far.

    An answer is prepared before its steps begin. The owner must hold `lock` from reading `open`
    until the answer is sent.

    Attributes:
        open: whether the final answer hasn't been sent yet.
        over: whether the prepared answer is the final one.
        begin_ns: when the call arrived, in timer nanoseconds.
        prefill_tokens: number of context tokens that the next step computes first.
        computed_tokens: number of tokens that went through the model for this call.

    """

    def __init__(
        self,
        request: EngineRequest,
        respond: Respond,
        sampler: EmulatedSampler,
        usage: CallUsage,
        *,
        begin_ns: int,
    ) -> None:
        """usage: cost of the context. begin_ns: when the call arrived, in timer nanoseconds.

        `usage` has the same instant in system time. Both clocks are read once per call and never
        again, so reported times follow the order of the steps even on a busy machine.
        """
        self.request = request
        self.lock = threading.RLock()  # reentrant: the receiver of an answer may stop the call
        self.open = True
        self.over = False
        self.begin_ns = begin_ns
        self.prefill_tokens = usage.computed_tokens - 1  # the first step computes the last token
        self.computed_tokens = usage.computed_tokens
        self._respond = respond
        self._sampler = sampler
        self._usage = usage
        self._ids: list[int] = []
        self._joint_probability = 1.0  # product of the probabilities of the generated tokens
        self._unsent: list[Token] = []
        self._logits: Floats | None = None
        self._clocks_apart_ns = usage.first_scheduled_time_ns - begin_ns
        self._scheduled = False
        self._steps = 0  # of the prepared answer
        self._ends_ns: list[int] = []  # ends of those steps so far
        self._accepted = 0
        self._first_token_ns = 0
        self._last_token_ns = 0

    @property
    def rows(self) -> int:
        """Number of tokens per step, not counting drafts to verify."""
        return 1

    @property
    def due(self) -> bool:
        """Whether all steps of the prepared answer have ended."""
        return len(self._ends_ns) == self._steps

    @property
    def cached_text(self) -> Ids:
        """The text whose KV cache the engine keeps: [context + answer - 1].

        The last token of the answer isn't computed yet.
        """
        return np.concatenate((self.request.input_ids, np.array(self._ids[:-1], np.int32)))

    def prepare(self) -> None:
        """Choose the tokens of the next answer. Raises RequestError."""
        self._ends_ns = []
        if len(self.request.draft_ids):
            emitted = self._sampler.verify()
            surplus = self._take(emitted)
            self._accepted = len(emitted) - 1 - surplus
            self._steps = 1
            self.over = True
            self.computed_tokens += len(self.request.draft_ids)
        else:
            first = not self._ids
            self._steps = 0
            while not self._steps or not (self.over or self.request.streaming):
                self._take([self._sampler.next()])
                self._steps += 1
            self.computed_tokens += self._steps - first  # the first step includes the context's end
        rows = [token.row for token in self._unsent if token.row]
        self._logits = dense(rows, self._sampler.vocab_size) if rows else None

    def begin_step(self, begin_ns: int) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._usage = self._usage._replace(first_scheduled_time_ns=self._wall_ns(begin_ns))

    def end_step(self, end_ns: int) -> None:
        self.prefill_tokens = 0
        self._ends_ns.append(end_ns)

    def stop(self) -> None:
        """Make the prepared answer final, keeping only the tokens of steps that have ended."""
        if not self.due:
            self._steps = len(self._ends_ns)
            del self._ids[len(self._ids) - len(self._unsent) + self._steps :]
            del self._unsent[self._steps :]
            self._accepted = 0
        self.over = True

    def answer(self, now_ns: int) -> None:
        """Send the prepared answer. Its last token came at `now_ns`, or at the end of its step."""
        if self._unsent:
            self._last_token_ns = self._wall_ns(max(now_ns, self._ends_ns[-1]))
            self._first_token_ns = self._first_token_ns or self._wall_ns(self._ends_ns[0])
        tokens, self._unsent = self._unsent, []
        log_probs = None
        if self.request.return_log_probs:
            # `FLOOR` for tokens that only a mask allowed
            values = [math.log(t.probability) if t.probability else FLOOR for t in tokens]
            log_probs = np.array(values, np.float32)
        self._deliver(
            EngineResponse(
                tokens=tuple(token.id for token in tokens),
                final=self.over,
                log_probs=log_probs,
                generation_logits=None if self._logits is None else self._logits[: len(tokens)],
                usage=self._final_usage(),
            )
        )

    def fail(self, error: EngineError) -> None:
        self._deliver(EngineResponse(error=str(error), code=error.code, usage=self._final_usage()))

    def _deliver(self, answer: EngineResponse) -> None:
        """Send an answer. If sending fails, the call is over."""
        self.open = not answer.final
        if not deliver(self._respond, answer):
            self.open = False

    def _take(self, tokens: list[Token]) -> int:
        """Add tokens to the answer. Return the number of tokens after the answer's end."""
        request = self.request
        kept, ended, surplus = cut(request, self._ids, [token.id for token in tokens])
        self._ids += kept
        for token in tokens[: len(kept)]:
            self._unsent.append(token)
            self._joint_probability *= token.probability
        threshold = request.draft_stop_probability
        unsure = threshold is not None and self._joint_probability < threshold
        self.over = ended or unsure or len(self._ids) >= request.max_new_tokens
        return surplus

    def _wall_ns(self, timer_ns: int) -> int:
        return timer_ns + self._clocks_apart_ns

    def _final_usage(self) -> CallUsage:
        return self._usage._replace(
            computed_tokens=self.computed_tokens,
            draft_tokens=len(self.request.draft_ids),
            accepted_tokens=self._accepted,
            first_token_time_ns=self._first_token_ns,
            last_token_time_ns=self._last_token_ns,
        )


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
        self._max_tokens = max_tokens
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
                    branch.add(token.id, math.log(token.probability))
        self._steps = 1 + max((branch.steps for branch in self._branches), default=0)
        self.computed_tokens += len(drafts) + sum(branch.steps for branch in self._branches)

    def stop(self) -> None:
        """Keep only the tokens that the branches have so far."""
        if not self.due:
            self._steps = len(self._ends_ns)
            self._branches = [branch.early(self._steps - 1) for branch in self._branches]

    def answer(self, now_ns: int) -> None:
        if self._ends_ns:
            self._last_token_ns = self._wall_ns(max(now_ns, self._ends_ns[-1]))
            self._first_token_ns = self._wall_ns(self._ends_ns[:2][-1])  # the first verifies
        usage = self._final_usage()._replace(draft_tokens=0)  # the call verifies no drafts
        branches = pack_branches(started_branches(self._branches))
        self._deliver(EngineResponse(usage=usage, branches=branches))

    def _candidates(self, own: EmulatedSampler, target: EmulatedSampler, count: int) -> list[int]:
        """Return up to `count` guesses for the next token, or none if every token is banned."""
        try:
            first, truth = own.peek(), target.peek()
        except RequestError:
            return []
        guesses = self._language.alternatives(own.text, first, truth)
        return list(islice(filter(own.allows, guesses), count))
