"""Log-probabilities of tokens and of their most likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.engines.request import Floats, LikeliestTokens

_ROWS_AT_ONCE = 64  # rows of a prompt's logits; each has the width of the vocabulary


class LogProbRecorder:
    """Collects log-probabilities of tokens and of the k most likely tokens at each position.

    They are the log-softmax of the model's logits, before any processing.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._values: list[float] = []
        self._top_ids: list[torch.Tensor] = []  # [n, k] each
        self._top_values: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, tokens: Sequence[int]) -> None:
        """Add tokens [n] that were chosen from logits [n, vocab_size]."""
        for start in range(0, len(tokens), _ROWS_AT_ONCE):
            chosen = tokens[start : start + _ROWS_AT_ONCE]
            rows = logits[start : start + len(chosen)].float().log_softmax(-1)
            self._values += rows[range(len(chosen)), chosen].tolist()
            if self._num_top:
                values, ids = rows.topk(self._num_top, -1)
                self._top_values.append(values.cpu())
                self._top_ids.append(ids.int().cpu())

    def add_known(self, values: Sequence[float]) -> None:
        """Add tokens with known log-probabilities and no alternatives."""
        self._values += values

    def skip(self, count: int) -> None:
        """Add `count` tokens without predecessors. Their rows are zeros."""
        self._values += [0.0] * count
        if self._num_top:
            self._top_values.append(torch.zeros(count, self._num_top))
            self._top_ids.append(torch.zeros(count, self._num_top, dtype=torch.int32))

    def take(self) -> tuple[Floats, LikeliestTokens | None]:
        values, self._values = self._values, []
        if not self._num_top:
            return np.array(values, np.float32), None
        nothing = torch.empty(0, self._num_top)  # there may be no tokens
        top_ids = torch.cat((nothing.int(), *self._top_ids)).numpy()
        top_values = torch.cat((nothing, *self._top_values)).numpy()
        self._top_ids, self._top_values = [], []
        return np.array(values, np.float32), LikeliestTokens(top_ids, top_values)
