"""State of one running call."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.contract.errors import ErrorCode
from tandem.engines.constraints import cut
from tandem.engines.engine import (
    CallUsage,
    EngineRequest,
    EngineResponse,
    Floats,
    Respond,
    deliver,
)
from tandem.engines.stepping.kv_cache import KVEntry, Packed, Segment
from tandem.engines.stepping.sampling import CallSampler, LogProbRecorder


class CallSequence:
    """A call's tokens, its place in the KV cache and the state of its answers.

    Attributes:
        tokens: context, generated tokens, then drafts, allocated for the call's maximum length.
        length: number of tokens, including drafts.
        drafts: the tokens to verify next.
        entry: keys and values of the first `entry.length` tokens; None while the call waits.
        abandoned: whether an answer could not be delivered.
        over: whether the call has ended.
        stopped: whether the caller has stopped the call.

    """

    def __init__(self, request: EngineRequest, respond: Respond, sampler: CallSampler) -> None:
        context, drafts = request.input_ids, request.draft_ids
        self.request = request
        self.sampler = sampler
        self.prompt_length = len(context)
        self.drafts: list[int] = drafts.tolist()
        self.length = len(context) + len(drafts)
        self.tokens = np.empty(len(context) + request.max_new, np.int64)
        self.tokens[: self.length] = np.concatenate((context, drafts))
        self.entry: KVEntry | None = None
        self.abandoned = False
        self.over = False
        self._respond = respond
        self._generated: list[int] = []
        self._log_probs = LogProbRecorder(request.num_top_log_probs)
        self._prompt_log_probs = LogProbRecorder(request.num_top_log_probs)
        self._generation_logits: list[Floats] = []
        self._context_logits: list[Floats] = []
        self._answered = 0
        self._computed = 0
        self._joint_probability = 1.0  # product of the probabilities of the generated tokens
        self._drafted = 0
        self._accepted = 0
        self._first_scheduled_ns = 0
        self._first_token_ns = 0
        self._last_token_ns = 0

    @property
    def reusable(self) -> int:
        """Number of leading tokens that may come from the cache.

        The last token must be computed, because its logits are needed.
        """
        return 0 if self.wants_all_rows else self.prompt_length - 1

    @property
    def wants_all_rows(self) -> bool:
        return self.request.return_context_logits or self.request.return_prompt_log_probs

    @property
    def computed(self) -> int:
        return self.entry.length if self.entry else 0

    @property
    def pending(self) -> int:
        """Number of tokens that the model hasn't computed yet."""
        return self.length - self.computed

    @property
    def tail(self) -> int:
        """Number of final tokens that the model must compute in one pass."""
        return len(self.drafts) + 1

    @property
    def _first(self) -> int:
        """Position of the first token that the next answer adds."""
        return self.length - len(self.drafts)

    def next_tokens(self, count: int) -> NDArray[np.int64]:
        return self.tokens[self.computed : self.computed + count]

    def segment(self, count: int) -> Packed:
        """Return the call's part of the next forward pass: its next `count` tokens."""
        assert self.entry is not None
        rows = self.tail if count == self.pending else 0
        return Segment(self.entry, count, count if self.wants_all_rows else rows)

    def mark_computed(self, count: int) -> None:
        assert self.entry is not None
        self.entry.length += count
        self._computed += count
        self._first_scheduled_ns = self._first_scheduled_ns or time.time_ns()

    def keep_context(self, logits: Floats, start: int) -> None:
        """Keep the requested parts of the context's logits [rows, vocab_size].

        start: position of the first row's token.
        """
        if self.request.return_context_logits:
            self._context_logits.append(logits[: max(0, self.prompt_length - start)].copy())
        if self.request.return_prompt_log_probs:
            if start == 0:
                self._prompt_log_probs.skip(1)
            following = self.request.input_ids[start + 1 : start + 1 + len(logits)].tolist()
            self._prompt_log_probs.add(logits, following)

    def advance(self, logits: Floats) -> bool:
        """Add the step's tokens to the answer. Return whether the call is over.

        Sends the answer if it is complete, or, in a stream, the new part. If this raises
        RequestError, no answer has been sent.

        logits: [rows, vocab_size], of the call's last tokens. The next step overwrites them.
        """
        request, first, drafts = self.request, self._first, self.drafts
        logits = logits[-self.tail :]
        sampled, scores = self.sampler.sample(logits, self.tokens[: self.length], drafts)
        tokens, ended, surplus = cut(request, self._generated, sampled)
        if drafts:
            self._drafted = len(drafts)
            self._accepted = len(sampled) - 1 - surplus
        log_probs: list[float] = []
        if request.return_log_probs or request.draft_stop_probability is not None:
            log_probs = self._log_probs.add(logits, tokens)
        if request.return_generation_logits and tokens:
            self._generation_logits.append(np.stack(scores[: len(tokens)]))
        self._keep(tokens, first)
        over = ended or len(self._generated) >= request.max_new_tokens
        over = over or self._unsure(log_probs) or bool(drafts)
        self._drop_rejected()
        if over or request.streaming:
            self.answer(final=over)
        return over or self.abandoned

    def answer(self, *, final: bool) -> None:
        start, self._answered = self._answered, len(self._generated)
        request = self.request
        log_probs, top = self._log_probs.take() if request.return_log_probs else (None, None)
        prompt, prompt_top = None, None
        if request.return_prompt_log_probs and not start:
            prompt, prompt_top = self._prompt_log_probs.take()
        self._send(
            EngineResponse(
                tokens=tuple(self._generated[start:]),
                final=final,
                log_probs=log_probs,
                top_log_probs=top,
                prompt_log_probs=prompt,
                prompt_top_log_probs=prompt_top,
                context_logits=take_logits(self._context_logits),
                generation_logits=take_logits(self._generation_logits),
                usage=self._usage(),
            )
        )

    def fail(self, message: str, code: ErrorCode) -> None:
        self._send(EngineResponse(error=message, code=code, usage=self._usage()))

    def _send(self, answer: EngineResponse) -> None:
        self.abandoned |= not deliver(self._respond, answer)

    def _keep(self, tokens: list[int], first: int) -> None:
        """Add `tokens` to the text, at position `first`."""
        if not tokens:
            return
        self.tokens[first : first + len(tokens)] = tokens
        self._generated += tokens
        self._last_token_ns = time.time_ns()
        self._first_token_ns = self._first_token_ns or self._last_token_ns

    def _drop_rejected(self) -> None:
        """Remove rejected drafts from the text and from the cache.

        The last token was computed as the last draft token, if at all.
        """
        assert self.entry is not None
        self.length = self.prompt_length + len(self._generated)
        self.entry.length = self.length - 1

    def _unsure(self, log_probs: Sequence[float]) -> bool:
        limit = self.request.draft_stop_probability
        if limit is None or not log_probs:
            return False
        self._joint_probability *= math.exp(sum(log_probs))
        return self._joint_probability < limit

    def _usage(self) -> CallUsage:
        entry = self.entry
        return CallUsage(
            reused_blocks=entry.reused_blocks if entry else 0,
            new_blocks=entry.blocks - entry.reused_blocks if entry else 0,
            computed_tokens=self._computed,
            draft_tokens=self._drafted,
            accepted_tokens=self._accepted,
            first_scheduled_time_ns=self._first_scheduled_ns,
            first_token_time_ns=self._first_token_ns,
            last_token_time_ns=self._last_token_ns,
        )


def take_logits(parts: list[Floats]) -> Floats | None:
    """Join and clear the parts [n, vocab_size]. Return None if there are none."""
    if not parts:
        return None
    joined: Floats = np.concatenate(parts)
    parts.clear()
    return joined
