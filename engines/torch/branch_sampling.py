"""From logits to the tokens of branches: what may come next, and what is drafted behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.engines.noise import Purpose, exponentials
from tandem.engines.request import EngineRequest
from tandem.engines.torch.sampling import TorchSampler
from tandem.engines.torch.scores import Row


class BranchSampler(TorchSampler):
    """A call's sampler that also chooses for many branches at once.

    Branches of one seed draw a position's token with the same noise: it is made once a position.
    """

    def __init__(self, request: EngineRequest, vocab_size: int, device: torch.device) -> None:
        super().__init__(request, vocab_size, device)
        self._seeds = None if request.branch_seeds is None else request.branch_seeds.tolist()
        self._shares_noise = self._seeds is None and not request.return_generation_logits
        self._noise_at: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def rank(self, scores: Row, position: int, count: int) -> list[int]:
        """Return up to `count` tokens that may stand at `position`, the likeliest first.

        scores: [vocab_size]. Where draft and target share their noise, the token that the target
        adds is one of the best under it.
        """
        if self._greedy:
            weights, least = scores, -torch.inf
        else:
            weights, least = self._probabilities(scores), 0.0
            if self._shares_noise:
                weights = weights / self._noise(self._seed, position)
        best = weights.topk(min(count, len(weights)))
        return best.indices[best.values > least].tolist()

    def choose_each(
        self, scores: torch.Tensor, accepted: Sequence[int], positions: Sequence[int]
    ) -> list[int]:
        """Return a token per row of scores [rows, vocab_size], of branches at these positions."""
        if not self._greedy:
            seeds = self._seeds or [self._seed] * (max(accepted) + 1)
            keys = [(seeds[j], position) for j, position in zip(accepted, positions, strict=True)]
            self._forget_before(keys)
            noise = [self._noise(*key) for key in keys]
            scores = self._warped(scores) / torch.stack(noise)
        tokens: list[int] = scores.argmax(-1).tolist()
        return tokens

    def _forget_before(self, keys: Sequence[tuple[int, int]]) -> None:
        """Forget the noise that no branch comes to any more: each goes on from its position."""
        least: dict[int, int] = {}
        for seed, position in keys:
            least[seed] = min(position, least.get(seed, position))
        self._noise_at = {
            (seed, position): noise
            for (seed, position), noise in self._noise_at.items()
            if seed in least and position >= least[seed]
        }

    def _noise(self, seed: int, position: int) -> torch.Tensor:
        """Return the noise [vocab_size] that a plain call draws the token there with."""
        key = (seed, position)
        if key not in self._noise_at:
            noise = exponentials(seed, position, Purpose.SAMPLE, self._vocab_size)
            self._noise_at[key] = torch.from_numpy(np.ascontiguousarray(noise)).to(self._device)
        return self._noise_at[key]
