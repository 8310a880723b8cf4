"""From a step's logits to its tokens, on the device: the host waits for nothing between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tandem.engines.noise import Purpose, key_of
from tandem.engines.torch.paged.noise import keys_on
from tandem.engines.torch.sampling import TorchSampler


class TokenChoice(NamedTuple):
    """What one call makes of its last rows of a step, where nothing else looks at them.

    first: position of the token that the first of these rows is for.
    drafts: what they verify; a row for each, and one more.
    rates: whether the call asks how likely its tokens are.
    """

    sampler: TorchSampler
    first: int
    drafts: Sequence[int]
    rates: bool

    @property
    def rows(self) -> int:
        return len(self.drafts) + 1


class Chosen(NamedTuple):
    """A step's tokens, on its device.

    tokens: [rows], what each row chooses; the best where no call chooses, -1 behind a draft token
        that is rejected by its logits.
    log_probs: [rows], log-softmax of the logits at these; None: nobody asks.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor | None


class _Draw(NamedTuple):
    """Rows that are sampled in one way. rows: [n], or None: all. keys: [steps, n], of noise."""

    sampler: TorchSampler
    rows: torch.Tensor | None
    keys: torch.Tensor


class TokenChooser:
    """Chooses the tokens of a step, or of several that bring each call one token."""

    def __init__(
        self,
        choices: Sequence[TokenChoice | None],
        counts: Sequence[int],
        steps: int,
        device: torch.device,
    ) -> None:
        """Send to the device what the steps need: once they run, that would wait for them.

        choices: of each call in the step, or None: it chooses for itself. counts: its rows.
        """
        ends = np.cumsum(counts).tolist()
        self._placed = [
            (choice, end - choice.rows)
            for choice, end in zip(choices, ends, strict=True)
            if choice is not None
        ]
        self._rates = any(choice.rates for choice, _ in self._placed)
        self._draws = self._grouped(ends[-1], steps, device)
        self._sent = [
            (choice.sampler, start, choice.sampler.send_drafts(choice.drafts, choice.first))
            for choice, start in self._placed
            if choice.sampler.verifies_by_logits
        ]

    def choose(self, step: int, logits: torch.Tensor, best: torch.Tensor) -> Chosen:
        """Choose from logits [rows, vocab_size] of the step of that number; best: [rows]."""
        tokens = best
        for sampler, rows, keys in self._draws:
            if rows is None:
                tokens = sampler.draw_each(logits, keys[step])
            else:
                drawn = sampler.draw_each(logits.index_select(0, rows), keys[step])
                tokens = tokens.index_copy(0, rows, drawn)
        for sampler, start, sent in self._sent:
            end = start + len(sent.keys)
            emitted = sampler.verify_by_logits(logits[start:end], sent)
            tokens = torch.cat((tokens[:start], emitted, tokens[end:]))
        return Chosen(tokens, _log_probs(logits, tokens) if self._rates else None)

    def _grouped(self, num_rows: int, steps: int, device: torch.device) -> list[_Draw]:
        groups: dict[object, list[tuple[TorchSampler, int, int]]] = {}
        for choice, start in self._placed:
            sampler = choice.sampler
            if sampler.warping is not None and not sampler.verifies_by_logits:
                members = groups.setdefault(sampler.warping, [])
                members += [(sampler, start + i, choice.first + i) for i in range(choice.rows)]
        draws = []
        for members in groups.values():
            keys = [
                key_of(sampler.seed, position + step, Purpose.SAMPLE)
                for step in range(steps)
                for sampler, _, position in members
            ]
            rows = [row for _, row, _ in members]
            where = None if len(rows) == num_rows else torch.tensor(rows, device=device)
            draws.append(_Draw(members[0][0], where, keys_on(device, keys).view(steps, -1)))
        return draws


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    rows = logits.float().log_softmax(-1)
    return rows.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
