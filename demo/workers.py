"""Runs training on a GPU, or without one on two threads, each with a replica of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compile_for_gpu(model: Any) -> None:
    """Compile each layer if there is a GPU.

    The model isn't compiled as a whole, because attention would then get a mask.
    """
    if device().type == "cuda":
        for layer in model.model.layers:
            layer.compile(dynamic=False)


class Workers:
    """Replicas of a model with shared weights, each with its own thread.

    Two replicas with half the rows each synchronize once per step. A single pass on two threads
    would synchronize after every operation, and wait whenever another process occupies a core.
    """

    def __init__(self, model: Any, loss: Loss) -> None:
        count = 1 if device().type == "cuda" else 2
        self.loss = loss
        compile_for_gpu(model)
        self.models = [model, *(_replica(model) for _ in range(count - 1))]
        threads = max(1, torch.get_num_threads() // count)
        self.pool = ThreadPoolExecutor(count, "worker", torch.set_num_threads, (threads,))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> Any:
        """Apply `function` to each worker's share of `rows`, and concatenate the results."""
        return torch.cat(list(self.pool.map(function, rows.chunk(len(self.models)))))

    def backward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the gradients of the mean loss over `rows`, and return the loss.

        The gradients are in the first model.
        """
        losses = list(self.pool.map(self._backward, self.models, rows.chunk(len(self.models))))
        _average_gradients(self.models)
        return torch.stack(losses).mean()

    def _backward(self, model: Any, rows: torch.Tensor) -> torch.Tensor:
        loss = self.loss(model, rows)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def _replica(model: Any) -> Any:
    replica = copy.deepcopy(model)
    for mine, shared in zip(replica.parameters(), model.parameters(), strict=True):
        mine.data = shared.data
    return replica


@torch.no_grad()
def _average_gradients(models: Sequence[Any]) -> None:
    for first, *others in zip(*(model.parameters() for model in models), strict=True):
        for other in others:
            first.grad += other.grad
            other.grad = None
        first.grad /= len(models)
