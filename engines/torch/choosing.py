"""Choose a step's tokens on the device, so that one copy brings all of them to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tandem.engines.noise import Purpose, key_of
from tandem.engines.torch.noise import keys_on
from tandem.engines.torch.sampling import TorchSampler
from tandem.sampling.params import SamplingNumbers


class TokenChoice(NamedTuple):
    """How one call chooses tokens from its last rows of a step: one per draft token and one more.

    first: position of the token that is chosen from the first of these rows.
    wants_log_probs: whether the call needs log-probabilities of its tokens.
    """

    sampler: TorchSampler
    first: int
    drafts: Sequence[int]
    wants_log_probs: bool

    @property
    def rows(self) -> int:
        return len(self.drafts) + 1


class _Draw(NamedTuple):
    """Rows with the same sampling parameters. rows: [n], or None: all. keys: [n], noise keys."""

    sampler: TorchSampler
    rows: torch.Tensor | None
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

        choices: one per call in the step; None: the call chooses its tokens itself. counts: number
        of rows per call.
        """
        ends = np.cumsum(counts).tolist()
        self._placed = [
            (choice, end - choice.rows)
            for choice, end in zip(choices, ends, strict=True)
            if choice is not None
        ]
        self._wants_log_probs = any(choice.wants_log_probs for choice, _ in self._placed)
        self._draws = self._grouped(ends[-1], device)
        self._verified = [
            (choice.sampler, start, choice.sampler.drafts_on_device(choice.drafts, choice.first))
            for choice, start in self._placed
            if choice.sampler.verifies_by_logits
        ]

    def choose(
        self, logits: torch.Tensor, best: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the token of each row of logits [rows, vocab_size], and its log-probability.

        best: [rows], default tokens for the rows that no `TokenChoice` samples. Rows after a
        rejected draft token get -1. The log-probabilities are None if no call needs them.
        """
        tokens = best
        for sampler, rows, keys in self._draws:
            if rows is None:
                tokens = sampler.choose_on_device(logits, keys)
            else:
                drawn = sampler.choose_on_device(logits.index_select(0, rows), keys)
                tokens = tokens.index_copy(0, rows, drawn)
        for sampler, start, drafts in self._verified:
            end = start + len(drafts.keys)
            emitted = sampler.verify_on_device(logits[start:end], drafts)
            tokens = torch.cat((tokens[:start], emitted, tokens[end:]))
        if not self._wants_log_probs:
            return tokens, None
        rows = logits.float().log_softmax(-1)
        return tokens, rows.gather(1, tokens.clamp(min=0)[:, None])[:, 0]

    def _grouped(self, num_rows: int, device: torch.device) -> list[_Draw]:
        groups: dict[SamplingNumbers, list[tuple[TorchSampler, int, int]]] = {}
        for choice, start in self._placed:
            sampler = choice.sampler
            if not (sampler.greedy or sampler.verifies_by_logits):
                members = groups.setdefault(sampler.numbers, [])
                members += [(sampler, start + i, choice.first + i) for i in range(choice.rows)]
        draws = []
        for members in groups.values():
            keys = [
                key_of(sampler.seed, position, Purpose.SAMPLE) for sampler, _, position in members
            ]
            rows = [row for _, row, _ in members]
            where = None if len(rows) == num_rows else torch.tensor(rows, device=device)
            draws.append(_Draw(members[0][0], where, keys_on(device, keys)))
        return draws
