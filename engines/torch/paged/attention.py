"""Attention over pages, in one call for all rows of a step.

`attend_gathered` is plain PyTorch and runs everywhere: it first copies each row's pages together.
PyTorch's own `varlen_attn` (FlashAttention) reads the pages in place. Its abilities depend on its
version and on the GPU, and some versions return wrong rows, so `choose` tests it before use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from itertools import product
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from tandem.engines.errors import first_line
from tandem.engines.torch.attention import QKV
from tandem.engines.torch.contiguous_kv_cache import KVShape
from tandem.engines.torch.paged.batch import PagedBatch, PagedRow, make_batch
from tandem.engines.torch.paged.page_pool import PagePool

log = logging.getLogger(__name__)

# query [tokens, heads, size], keys and values [pages, page_tokens, kv heads, size], step, window
Attention: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, "PagedStep", int | None], torch.Tensor
]
_TOLERANCE = 2e-2  # for outputs that are means of values around 1


class PagedStep:
    """One forward pass, presented to `attention.attend` as one segment that holds all rows."""

    def __init__(self, batch: PagedBatch, pool: PagePool, attention: Attention) -> None:
        self.batch = batch
        self._pool = pool
        self._attention = attention
        self._slots = batch.slots.long()
        self._pages = batch.tables.flatten().long()
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}
        self._index: torch.Tensor | None = None
        self.count = len(batch.ids)

    def attend(
        self, layer: int, qkv: QKV, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Write the new keys and values, then attend: [1, heads, tokens, size] to its transpose."""
        assert scaling is None  # the Llama family uses the default
        query, key, value = (part[0].transpose(0, 1) for part in qkv)
        keys, values = self._pool.layer(layer)
        keys.view(-1, *keys.shape[2:]).index_copy_(0, self._slots, key)
        values.view(-1, *values.shape[2:]).index_copy_(0, self._slots, value)
        return self._attention(query, keys, values, self, window)[None]

    def gather(self, pages: torch.Tensor) -> torch.Tensor:
        """Copy each row's pages together: [pages, page_tokens, ...] to [rows, keys, ...]."""
        return pages.index_select(0, self._pages).view(self.batch.size.rows, -1, *pages.shape[2:])

    def mask(self, window: int | None, keys: int, groups: int) -> torch.Tensor:
        """Return a mask of the keys that each token sees: [rows, 1, groups * width, keys]."""
        if (window, groups) not in self._masks:
            device = self.batch.positions.device
            position = self.to_rectangle(self.batch.positions)[..., None]
            key = torch.arange(keys, device=device)
            seen = key <= position
            if window is not None:
                seen &= key > position - window
            self._masks[window, groups] = seen[:, None].repeat(1, 1, groups, 1)
        return self._masks[window, groups]

    def to_rectangle(self, tokens: torch.Tensor) -> torch.Tensor:
        """Arrange tokens [tokens, ...] by row, padded with arbitrary tokens: [rows, width, ...]."""
        size = self.batch.size
        if size.is_even:
            return tokens.view(size.rows, size.width, *tokens.shape[1:])
        first = self.batch.ends[:-1, None] + torch.arange(size.width, device=tokens.device)
        return tokens[first.clamp_(max=len(tokens) - 1)]

    def from_rectangle(self, rectangle: torch.Tensor) -> torch.Tensor:
        """Undo `to_rectangle`: [rows, width, ...] to [tokens, ...]."""
        size, ends = self.batch.size, self.batch.ends
        flat = rectangle.flatten(0, 1)
        if size.is_even:
            return flat
        if self._index is None:
            rows = torch.arange(size.rows, device=flat.device).repeat_interleave(ends.diff())
            inside = torch.arange(size.tokens, device=flat.device) - ends[rows]
            self._index = rows * size.width + inside
        return flat[self._index]


def attend_gathered(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PagedStep,
    window: int | None,
) -> torch.Tensor:
    """Copy each row's pages together, then attend. Return [tokens, heads, size]."""
    heads, kv_heads, size = query.shape[1], keys.shape[2], query.shape[2]
    rows, width = step.batch.size.rows, step.batch.size.width
    groups = heads // kv_heads
    own_keys, own_values = (step.gather(part).transpose(1, 2) for part in (keys, values))
    parts = (
        step.to_rectangle(query).view(rows, width, kv_heads, groups, size).permute(0, 2, 3, 1, 4)
    )
    seen = F.scaled_dot_product_attention(
        parts.flatten(2, 3),  # query heads that share a key head are additional rows
        own_keys,
        own_values,
        attn_mask=step.mask(window, own_keys.shape[2], groups),
    )
    seen = seen.view(rows, kv_heads, groups, width, size).permute(0, 3, 1, 2, 4)
    return step.from_rectangle(seen.reshape(rows, width, heads, size))


def attend_varlen(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PagedStep,
    window: int | None,
) -> torch.Tensor:
    """Attend with PyTorch's FlashAttention, which reads the pages in place. CUDA only.

    Returns [tokens, heads, size].
    """
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 (not in every PyTorch)

    batch = step.batch
    seen: Any = varlen_attn(
        query,
        keys,
        values,
        batch.ends,
        batch.page_ends * keys.shape[1],
        batch.size.width,
        batch.size.pages * keys.shape[1],
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=batch.lengths,
        block_table=batch.tables,
        num_splits=1,  # PyTorch issue 194167: larger values lose rows of a paged cache
    )
    return cast("torch.Tensor", seen)


def choose(pool: PagePool, heads: int, windows: Collection[int | None]) -> Attention:
    """Return `attend_varlen` if it works on this device, or `attend_gathered`.

    windows: sizes of the layers' attention windows in tokens; None: no window.
    """
    if pool.memory.device.type != "cuda":
        return attend_gathered
    fault = find_fault(attend_varlen, pool, heads, windows)
    if fault is None:
        log.info("paged attention reads the pages in place")
        return attend_varlen
    log.warning("paged attention copies pages, because varlen_attn fails: %s", fault)
    return attend_gathered


def find_fault(
    attention: Attention, pool: PagePool, heads: int, windows: Collection[int | None]
) -> str | None:
    """Compare an attention with `attend_gathered` on random data. Return the difference, or None.

    Tests a ragged and an even step. Windows are shortened to a page, because the test has few
    tokens.
    """
    keys, _ = pool.layer(0)
    kv_heads, size = keys.shape[2:]
    device, page = keys.device, pool.page_tokens
    shape = KVShape(((kv_heads, size, size),), keys.dtype, device)
    trial = PagePool(shape, pages=12, page_tokens=page)
    generator = torch.Generator(device).manual_seed(0)
    trial.memory.normal_(generator=generator)
    ragged = [
        PagedRow(2 * page + 5, 3, [5, 2, 9]),
        PagedRow(0, 1, [7]),
        PagedRow(page - 2, 4, [1, 4]),
    ]
    even = [PagedRow(page + 3, 2, [3, 8]), PagedRow(5, 2, [6]), PagedRow(0, 2, [10])]
    tried = {None if window is None else min(window, page) for window in windows}
    for rows, window in product((ragged, even), tried):
        tokens = sum(row.new for row in rows)
        batch = make_batch(torch.arange(tokens).numpy(), rows, page, device)
        step = PagedStep(batch, trial, attend_gathered)
        query = torch.randn(
            tokens, heads, size, generator=generator, device=device, dtype=keys.dtype
        )
        want = attend_gathered(query, *trial.layer(0), step, window)
        try:
            got = attention(query, *trial.layer(0), step, window)
            gap = float((want.float() - got.float()).abs().max())  # waits for the device's errors
        except Exception as error:  # noqa: BLE001 (any error of a PyTorch that lacks it)
            return first_line(error)
        if not gap <= _TOLERANCE:
            return f"its output differs by {gap:.3g} ({kv_heads} heads of size {size})"
    return None
