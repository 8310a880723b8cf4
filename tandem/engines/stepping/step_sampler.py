"""Sample a step's tokens on the device, so that one copy brings all of them to the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.noise import Purpose, hash_key
from tandem.engines.stepping.sampling import CallSampler
from tandem.engines.stepping.verification import (
    REJECTED,
    argmax,
    draw,
    keys_on,
    verify_probabilities,
)
from tandem.sampling.acceptance import verify_ids
from tandem.sampling.params import SamplingNumbers

BANNED = -2  # in place of a token if its row bans every token


class SamplingInput(NamedTuple):
    """What one call's tokens are sampled from, besides its last logits of a step.

    The call has one row of these logits per draft token, and one more.

    text: the call's tokens. first: position of the token that is sampled from the first row.
    wants_log_probs: whether the call needs log-probabilities of its tokens.
    """

    sampler: CallSampler
    text: NDArray[np.int64]
    first: int
    drafts: Sequence[int]
    wants_log_probs: bool

    @property
    def rows(self) -> int:
        return len(self.drafts) + 1


class StepOutput(NamedTuple):
    """One call's result of a step. Tensors are on the model's device.

    logits: [rows, vocab_size], of the model.

    The rest is only for calls with a `SamplingInput`:

    scores: [call.rows, vocab_size], the last logits after bias, penalties, bans and masks.
    tokens: the accepted draft tokens, then the model's own token or `BANNED`.
    log_probs: log-softmax of the logits at these tokens; empty if no call needs them.
    """

    logits: torch.Tensor
    scores: torch.Tensor | None = None
    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


class _Placed(NamedTuple):
    """A call and its range among the rows that tokens are sampled from."""

    call: SamplingInput
    start: int
    end: int


class _Draw(NamedTuple):
    """Rows with the same sampling parameters. rows: [n], their indices. keys: [n], noise keys."""

    sampler: CallSampler
    rows: torch.Tensor
    keys: torch.Tensor


class StepSampler:
    """Samples the tokens of all calls in a step, and verifies their drafts."""

    def __init__(
        self,
        calls: Sequence[SamplingInput | None],
        counts: Sequence[int],
        device: torch.device,
    ) -> None:
        """Copy the inputs to the device before the step; a later copy would wait for the step.

        calls: one input per call in the step; None: the call needs only its logits. counts: number
        of rows per call.
        """
        self._calls, self._counts = calls, counts
        self._placed: list[_Placed] = []
        used: list[int] = []
        for call, end in zip(calls, np.cumsum(counts).tolist(), strict=True):
            if call is not None:
                self._placed.append(_Placed(call, len(used), len(used) + call.rows))
                used += range(end - call.rows, end)
        self._used = torch.tensor(used, device=device)
        self._draws = self._group_draws(device)
        self._proposals = [
            (placed, placed.call.sampler.proposal(placed.call.drafts, placed.call.first))
            for placed in self._placed
            if placed.call.sampler.verifies_by_logits
        ]

    def sample(self, logits: torch.Tensor) -> list[StepOutput]:
        """Return each call's result. logits: [rows, vocab_size], of all calls."""
        parts = torch.split(logits, list(self._counts))
        if not self._placed:
            return [StepOutput(part) for part in parts]
        rows = logits if len(self._used) == len(logits) else logits[self._used]
        scores = self._process_logits(rows)
        tokens = self._sample(scores)
        copied = [tokens.int()]
        if any(placed.call.wants_log_probs for placed in self._placed):
            chosen = tokens.clamp(min=0)[:, None]
            copied.append(rows.float().log_softmax(-1).gather(1, chosen)[:, 0].view(torch.int32))
        host = torch.stack(copied).cpu().numpy()
        ids, log_probs = host[0].tolist(), host[1:].view(np.float32).ravel().tolist()
        results, placed = [], iter(self._placed)
        for call, part in zip(self._calls, parts, strict=True):
            if call is None:
                results.append(StepOutput(part))
                continue
            _, start, end = next(placed)
            emitted = _emitted_tokens(call, ids[start:end])
            results.append(
                StepOutput(
                    part, scores[start:end], emitted, log_probs[start : start + len(emitted)]
                )
            )
        return results

    def _process_logits(self, rows: torch.Tensor) -> torch.Tensor:
        looking = [placed for placed in self._placed if placed.call.sampler.looks_at_text]
        if not looking:
            return rows
        scores = rows.to(torch.float32, copy=True)
        for call, start, end in looking:
            scores[start:end] = call.sampler.process(rows[start:end], call.text, call.first)
        return scores

    def _sample(self, scores: torch.Tensor) -> torch.Tensor:
        """Return a token per row of scores [rows, vocab_size], or `REJECTED` or `BANNED`."""
        tokens = argmax(scores)
        for sampler, rows, keys in self._draws:
            tokens[rows] = draw(sampler.probabilities(scores[rows]), keys)
        for (call, start, end), proposal in self._proposals:
            p = call.sampler.probabilities(scores[start:end])
            tokens[start:end] = verify_probabilities(p, proposal)
        if any(placed.call.sampler.looks_at_text for placed in self._placed):
            banned = (scores.amax(-1) == -torch.inf) & (tokens != REJECTED)
            tokens = tokens.masked_fill(banned, BANNED)
        return tokens

    def _group_draws(self, device: torch.device) -> list[_Draw]:
        groups: dict[SamplingNumbers, list[_Placed]] = {}
        for placed in self._placed:
            sampler = placed.call.sampler
            if not (sampler.greedy or sampler.verifies_by_logits):
                groups.setdefault(sampler.numbers, []).append(placed)
        draws = []
        for members in groups.values():
            keys = [
                hash_key(call.sampler.seed, call.first + i, Purpose.SAMPLE)
                for call, start, end in members
                for i in range(end - start)
            ]
            rows = [row for _, start, end in members for row in range(start, end)]
            draws.append(
                _Draw(
                    members[0].call.sampler,
                    torch.tensor(rows, device=device),
                    keys_on(device, keys),
                )
            )
        return draws


def _emitted_tokens(call: SamplingInput, sampled: list[int]) -> list[int]:
    """Return the tokens that a call emits.

    sampled: a token per row; in logits mode, the result of `verify_probabilities`.
    """
    if call.sampler.verifies_by_logits:
        return list(takewhile(lambda token: token != REJECTED, sampled))
    return verify_ids(call.drafts, sampled)
