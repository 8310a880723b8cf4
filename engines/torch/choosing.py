"""Choose a step's tokens on the device, so that one copy brings all of them to the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.noise import Purpose, key_of
from tandem.engines.torch.noise import keys_on
from tandem.engines.torch.sampling import TorchSampler
from tandem.engines.torch.verification import REJECTED, draw, verify_ids, verify_probabilities
from tandem.sampling.params import SamplingNumbers

BANNED = -2  # in place of a token if its row bans every token


class TokenChoice(NamedTuple):
    """How one call chooses tokens from its last rows of a step: one per draft token and one more.

    text: the call's tokens. first: position of the token that is chosen from the first of these
    rows. wants_log_probs: whether the call needs log-probabilities of its tokens.
    """

    sampler: TorchSampler
    text: NDArray[np.int64]
    first: int
    drafts: Sequence[int]
    wants_log_probs: bool

    @property
    def rows(self) -> int:
        return len(self.drafts) + 1


class StepRows(NamedTuple):
    """One call's result of a forward pass, on the model's device.

    logits: [rows, vocab_size], of the model.

    The rest is only for calls with a `TokenChoice`:

    scores: [choice.rows, vocab_size], the last logits after bias, penalties, bans and masks.
    tokens: the emitted tokens: accepted draft tokens, then the model's own or `BANNED`.
    log_probs: log-softmax of the logits at these tokens; empty if no call needs them.
    """

    logits: torch.Tensor
    scores: torch.Tensor | None = None
    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()


class _Placed(NamedTuple):
    """A call's choice and its range among the rows that tokens are chosen from."""

    choice: TokenChoice
    start: int
    end: int


class _Draw(NamedTuple):
    """Rows with the same sampling parameters. rows: [n], their indices. keys: [n], noise keys."""

    sampler: TorchSampler
    rows: torch.Tensor
    keys: torch.Tensor


class TokenChooser:
    """Chooses the tokens of a step."""

    def __init__(
        self,
        choices: Sequence[TokenChoice | None],
        counts: Sequence[int],
        device: torch.device,
    ) -> None:
        """Copy the inputs to the device before the step; a later copy would wait for the step.

        choices: one per call in the step; None: the call needs only its logits. counts: number of
        rows per call.
        """
        self._choices, self._counts = choices, counts
        self._placed: list[_Placed] = []
        used: list[int] = []
        for choice, end in zip(choices, np.cumsum(counts).tolist(), strict=True):
            if choice is not None:
                self._placed.append(_Placed(choice, len(used), len(used) + choice.rows))
                used += range(end - choice.rows, end)
        self._used = torch.tensor(used, device=device)
        self._draws = self._grouped(device)
        self._proposals = [
            (placed, placed.choice.sampler.proposal(placed.choice.drafts, placed.choice.first))
            for placed in self._placed
            if placed.choice.sampler.verifies_by_logits
        ]

    def choose(self, logits: torch.Tensor) -> list[StepRows]:
        """Return each call's result. logits: [rows, vocab_size], of all calls."""
        parts = torch.split(logits, list(self._counts))
        if not self._placed:
            return [StepRows(part) for part in parts]
        rows = logits[self._used]
        scores = self._processed(rows)
        tokens = self._choose(scores)
        copied = [tokens.int()]
        if any(placed.choice.wants_log_probs for placed in self._placed):
            chosen = tokens.clamp(min=0)[:, None]
            copied.append(rows.float().log_softmax(-1).gather(1, chosen)[:, 0].view(torch.int32))
        host = torch.stack(copied).cpu().numpy()
        ids, log_probs = host[0].tolist(), host[1:].view(np.float32).ravel().tolist()
        results, placed = [], iter(self._placed)
        for choice, part in zip(self._choices, parts, strict=True):
            if choice is None:
                results.append(StepRows(part))
                continue
            _, start, end = next(placed)
            emitted = _emitted(choice, ids[start:end])
            results.append(
                StepRows(part, scores[start:end], emitted, log_probs[start : start + len(emitted)])
            )
        return results

    def _processed(self, rows: torch.Tensor) -> torch.Tensor:
        looking = [placed for placed in self._placed if placed.choice.sampler.looks_at_text]
        if not looking:
            return rows
        scores = rows.to(torch.float32, copy=True)
        for choice, start, end in looking:
            scores[start:end] = choice.sampler.process(rows[start:end], choice.text, choice.first)
        return scores

    def _choose(self, scores: torch.Tensor) -> torch.Tensor:
        """Return a token per row of scores [rows, vocab_size], or `REJECTED` or `BANNED`."""
        tokens = scores.argmax(-1)
        for sampler, rows, keys in self._draws:
            tokens[rows] = draw(sampler.probabilities(scores[rows]), keys)
        for (choice, start, end), proposal in self._proposals:
            p = choice.sampler.probabilities(scores[start:end])
            tokens[start:end] = verify_probabilities(p, proposal)
        if any(placed.choice.sampler.looks_at_text for placed in self._placed):
            banned = (scores.amax(-1) == -torch.inf) & (tokens != REJECTED)
            tokens = tokens.masked_fill(banned, BANNED)
        return tokens

    def _grouped(self, device: torch.device) -> list[_Draw]:
        groups: dict[SamplingNumbers, list[_Placed]] = {}
        for placed in self._placed:
            sampler = placed.choice.sampler
            if not (sampler.greedy or sampler.verifies_by_logits):
                groups.setdefault(sampler.numbers, []).append(placed)
        draws = []
        for members in groups.values():
            keys = [
                key_of(choice.sampler.seed, choice.first + i, Purpose.SAMPLE)
                for choice, start, end in members
                for i in range(end - start)
            ]
            rows = [row for _, start, end in members for row in range(start, end)]
            draws.append(
                _Draw(
                    members[0].choice.sampler,
                    torch.tensor(rows, device=device),
                    keys_on(device, keys),
                )
            )
        return draws


def _emitted(choice: TokenChoice, chosen: list[int]) -> list[int]:
    """Return the tokens that a call emits. chosen: a token per row, in logits mode the result."""
    if choice.sampler.verifies_by_logits:
        return list(takewhile(lambda token: token != REJECTED, chosen))
    return verify_ids(choice.drafts, chosen)
