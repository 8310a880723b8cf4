"""The memory of a paged KV cache (vLLM, arXiv:2309.06180)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tandem.engines.errors import LoadError
from tandem.engines.torch.contiguous_kv_cache import KVShape

PADDING = 0  # page that belongs to no text; padding tokens are written there


class PagePool:
    """Pages of keys and values of all layers, with reference counts.

    memory: [layers, 2, pages, page_tokens, heads, size]. It starts as zeros, because attention
    multiplies hidden values by 0, and 0 times uninitialized memory may be NaN.
    """

    def __init__(self, shape: KVShape, pages: int, page_tokens: int) -> None:
        """Allocate the pages and one page for padding, or raise LoadError."""
        [heads, size], *others = {layer[:2] for layer in shape.layers}
        if others or any(key != value for _, key, value in shape.layers):
            raise LoadError("paged_kv_cache requires layers of the same shape")
        self.page_tokens = page_tokens
        self.memory = torch.zeros(
            (len(shape.layers), 2, pages + 1, page_tokens, heads, size),
            dtype=shape.dtype,
            device=shape.device,
        )
        self._references = np.zeros(pages + 1, np.int64)
        self._references[PADDING] = 1
        self._free = list(range(pages, PADDING, -1))  # the last one is taken next

    @property
    def num_free(self) -> int:
        return len(self._free)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.memory[index]
        return keys, values

    def take(self, count: int) -> list[int]:
        assert count <= len(self._free)
        taken = [self._free.pop() for _ in range(count)]
        self._references[taken] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        self._references[list(pages)] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        return bool(self._references[page] > 1)

    def count_freed(self, holders: Sequence[Sequence[int]]) -> int:
        held = np.bincount([page for pages in holders for page in pages], minlength=1)
        references = self._references[: len(held)]
        return int(((held > 0) & (held == references)).sum())

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if sources:
            device = self.memory.device
            source, target = (torch.tensor(list(p), device=device) for p in (sources, targets))
            self.memory[:, :, target] = self.memory[:, :, source]
