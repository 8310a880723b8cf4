"""Muon for the hidden matrices, AdamW for embeddings and norms, and the learning-rate schedule."""

from __future__ import annotations

from typing import Any

import torch


class Optimizer:
    """Muon for the hidden matrices, AdamW for all other parameters.

    Muon (Jordan et al., 2024) learns more per token than AdamW, and the corpus is small.
    """

    def __init__(self, model: Any, muon_rate: float, adam_rate: float) -> None:
        hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(hidden, lr=muon_rate, weight_decay=0.05),
            torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.peaks = [muon_rate, adam_rate]

    def step(self, share: float) -> None:
        """Apply the gradients and clear them. share: fraction (0..1) of the peak learning rates."""
        for part, peak in zip(self.parts, self.peaks, strict=True):
            part.param_groups[0]["lr"] = peak * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def rate_share(step: int, steps: int, warmup: int = 40, decay: float = 0.5) -> float:
    """Return the fraction of the peak learning rate at a step.

    The rate rises for `warmup` steps, stays constant, and falls linearly to zero over the last
    `decay` (a fraction) of all `steps`.
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / (decay * steps))
