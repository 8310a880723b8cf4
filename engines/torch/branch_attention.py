"""Attention of many branches behind one shared text.

Each branch sees the beginning of the text up to where it leaves it, and its own tokens: two parts
of one softmax, so that the shared keys and values stay where they are and nobody copies them
(cascade inference, as FlashInfer calls it; there by the parts' log-sum-exp).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.torch.attention import QKV
from tandem.engines.torch.kv_cache import BranchKV, KVEntry


class BranchSegment:
    """The next token of each branch in a forward pass; every one wants logits.

    entry: the shared text's keys and values. leaves: how many of its tokens each branch sees: [n].
    """

    def __init__(self, entry: KVEntry, own: BranchKV, leaves: NDArray[np.int64]) -> None:
        self.entry = entry
        self.own = own
        self.leaves = leaves
        self._hidden: dict[int | None, torch.Tensor] = {}
        self.count = self.rows = len(leaves)

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.leaves + self.own.length

    def attend(
        self, layer: int, qkv: QKV, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        query, key, value = (part[0] for part in qkv)  # [heads, n, size]
        new = self.own.length
        own_keys, own_values = self.own.layers[layer]
        own_keys[:, :, new], own_values[:, :, new] = key, value
        own_keys, own_values = own_keys[:, :, : new + 1], own_values[:, :, : new + 1]
        end = int(self.leaves.max())
        keys, values = (part[:, :end] for part in self.entry.layers[layer])

        heads, count, size = query.shape
        kv_heads = len(keys)
        query = query * (size**-0.5 if scaling is None else scaling)
        query = query.view(kv_heads, -1, count, size)  # [kv heads, groups, n, size]
        shared = query.flatten(1, 2) @ keys.transpose(1, 2)
        shared = shared.view(kv_heads, -1, count, end)
        own = (query.transpose(1, 2) @ own_keys.transpose(2, 3)).transpose(1, 2)
        scores = torch.cat((shared, own), -1)
        scores.masked_fill_(self._hide(window, scores.device), -torch.inf)
        weights = scores.softmax(-1, torch.float32).to(query.dtype)
        shared, own = torch.split(weights, [end, new + 1], -1)
        out = (shared.flatten(1, 2) @ values).view(kv_heads, -1, count, values.shape[-1])
        out = out + (own.transpose(1, 2) @ own_values).transpose(1, 2)
        return out.reshape(1, heads, count, -1).transpose(1, 2)

    def _hide(self, window: int | None, device: torch.device) -> torch.Tensor:
        """What the branches do not look at: [n, shared text + own tokens]."""
        if window not in self._hidden:
            own = self.own.length + 1
            leaves = torch.from_numpy(self.leaves).to(device)[:, None]
            shared = torch.arange(int(self.leaves.max()), device=device)[None]
            beyond = shared >= leaves
            mine = torch.arange(own, device=device)[None]
            positions = leaves + self.own.length
            if window is not None:
                beyond |= shared <= positions - window
            past = mine < (own - window if window is not None else 0)
            self._hidden[window] = torch.cat((beyond, past.expand(len(leaves), own)), 1)
        return self._hidden[window]
