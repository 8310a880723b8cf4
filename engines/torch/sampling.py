"""From logits to tokens, for one call."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engines.errors import RequestError
from engines.noise import Purpose, exponentials
from engines.request import EngineRequest
from engines.torch.processors import history_processors, warpers
from engines.torch.verification import verify_ids, verify_probabilities


class Sampler:
    """Chooses a call's tokens: bias, history processors, then argmax or warped sampling.

    Rows are consecutive positions: row i of a call sees the tokens before position `first + i`.
    """

    def __init__(self, request: EngineRequest, vocab_size: int, device: torch.device) -> None:
        sampling = request.sampling
        self._device = device
        self._vocab_size = vocab_size
        self._history = history_processors(request, device)
        self._bias = _on_device(sampling.embedding_bias, device)
        self._greedy = sampling.greedy
        self._warpers = [] if self._greedy else warpers(sampling, vocab_size)
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._draft_logits = request.draft_logits
        self._threshold = request.draft_acceptance_threshold

    def process(self, logits: torch.Tensor, tokens: NDArray[np.int64], first: int) -> torch.Tensor:
        """Apply bias and history processors to logits [rows, vocab_size]; `tokens` is the text.

        Row i sees tokens[: first + i].
        """
        if self._bias is not None:
            logits = logits + self._bias
        if not self._history:
            return logits
        rows = [
            self._process_row(logits[i : i + 1], tokens[: first + i]) for i in range(len(logits))
        ]
        scores = torch.cat(rows)
        if not bool((scores.amax(-1) > -torch.inf).all()):
            raise RequestError("bad_words_list, embedding_bias and end_id together ban every token")
        return scores

    def choose(self, scores: torch.Tensor, first: int) -> list[int]:
        """Return a token per row of scores [rows, vocab_size], the first at position `first`."""
        if self._greedy:
            return scores.argmax(-1).tolist()
        noise = np.stack(
            [
                exponentials(self._seed, first + i, Purpose.SAMPLE, self._vocab_size)
                for i in range(len(scores))
            ]
        )
        weights = self._probabilities(scores) / torch.from_numpy(noise).to(self._device)
        return weights.argmax(-1).tolist()

    def verify(self, scores: torch.Tensor, drafts: Sequence[int], first: int) -> list[int]:
        """Return what a verification emits: scores [len(drafts) + 1, vocab_size]."""
        if self._greedy or self._draft_logits is None:
            return verify_ids(drafts, self.choose(scores, first))
        q = self._probabilities(torch.from_numpy(self._draft_logits).to(self._device))
        q = _at_width(q, self._vocab_size)
        p = self._probabilities(scores)
        return verify_probabilities(
            drafts, p, q, seed=self._seed, position=first, threshold=self._threshold
        )

    def _probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()
        for warper in self._warpers:
            scores = warper(None, scores)
        return scores.softmax(-1)

    def _process_row(self, row: torch.Tensor, history: NDArray[np.int64]) -> torch.Tensor:
        ids = torch.from_numpy(history).to(self._device)[None]
        for processor in self._history:
            row = processor(ids, row)
        return row


def _at_width(q: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Probabilities [rows, vocab_size] from those of a draft that is padded differently.

    They are warped as the draft warped them, padding included. A token that it drew lies in what
    both have; so what it gives to padding that the target lacks is shared out among the others.
    """
    missing = vocab_size - q.shape[-1]
    if missing >= 0:
        return torch.nn.functional.pad(q, (0, missing)) if missing else q
    q = q[:, :vocab_size]
    return q / q.sum(-1, keepdim=True)


def _on_device(array: NDArray[np.float32] | None, device: torch.device) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array).to(device)
