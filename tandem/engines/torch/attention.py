"""Attention over packed sequences and its KV cache, plugged into transformers' attention interface.

The new tokens of all sequences form one row, so each linear layer runs once for all of them. Only
attention separates the sequences: it appends a sequence's new keys and values to its cached ones,
and the sequence's queries see exactly these. Entries of the cache are contiguous, so that attention
reads them in place.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from numpy.typing import NDArray

from tandem.engines.stepping.kv_cache import (
    BranchKV,
    BranchSegment,
    KVCache,
    KVEntry,
    Packed,
    Segment,
    Tokens,
)

NAME = "tandem"
SHAPES_NAME = "tandem_shapes"
MASK_VALUES = 2**23  # per mask: 32 MB in single precision
QKV: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_current = threading.local()  # .segments: the segments of this thread's forward pass


@dataclass(frozen=True)
class KVShape:
    """Per layer: number of key/value heads, size of a key, size of a value."""

    layers: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    device: torch.device

    def allocate(self, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return an uninitialized (key, value) pair per layer, each [heads, tokens, size]."""
        sizes = [n * h * tokens for h, key, value in self.layers for n in (key, value)]
        memory = self._memory(sum(sizes))
        parts = iter(torch.split(memory, sizes))
        return [
            (next(parts).view(h, tokens, key), next(parts).view(h, tokens, value))
            for h, key, value in self.layers
        ]

    def _memory(self, size: int) -> torch.Tensor:
        """Return uninitialized memory [size].

        On a CPU, it is mapped separately, so that it returns to the system when freed. The C
        allocator would leave gaps for entries of ever-changing sizes, and grow without bound.
        """
        if self.device.type != "cpu":
            return torch.empty(size, dtype=self.dtype, device=self.device)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, size * self.dtype.itemsize, flags=flags)
        return torch.frombuffer(pages, dtype=self.dtype)


@dataclass(eq=False)
class TensorEntry(KVEntry):
    """One sequence's keys and values. capacity: size of `layers`, in tokens."""

    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    capacity: int = 0

    def resize(self, shape: KVShape, capacity: int, source: TensorEntry | None = None) -> None:
        """Move to new memory. Copy the first `length` tokens of `source` (default: this entry)."""
        old = (source or self).layers
        self.layers = shape.allocate(capacity)  # if this raises, nothing has changed
        self.capacity = capacity
        for (new_key, new_value), (key, value) in zip(self.layers, old, strict=False):
            new_key[:, : self.length] = key[:, : self.length]
            new_value[:, : self.length] = value[:, : self.length]


class TensorBranchKV(BranchKV):
    """Keys and values of the branches' own tokens, until the call ends."""

    def __init__(self, shape: KVShape, branches: int, tokens: int) -> None:
        self.layers = [
            tuple(part.view(len(part), branches, tokens, -1) for part in layer)
            for layer in shape.allocate(branches * tokens)
        ]

    def keep(self, rows: list[int]) -> None:
        self.layers = [tuple(part[:, rows] for part in layer) for layer in self.layers]


class TensorKVCache(KVCache[TensorEntry]):
    """An engine's entries.

    The limit counts tokens. Memory use may be up to twice as much (`GROWTH`), so that entries can
    grow without moving.
    """

    def __init__(
        self, shape: KVShape, max_tokens: int, block_tokens: int, max_seq_len: int
    ) -> None:
        super().__init__(max_tokens, block_tokens)
        self.shape = shape
        self._max_seq_len = max_seq_len

    def _new_entry(self, source: TensorEntry | None, shared: int, max_length: int) -> TensorEntry:
        entry = TensorEntry(length=shared)
        entry.resize(self.shape, self._capacity(max_length), source)
        return entry

    def _cut(self, entry: TensorEntry, shared: int, max_length: int) -> None:
        entry.length = shared
        if entry.capacity < max_length:
            entry.resize(self.shape, self._capacity(max_length))

    def branch_kv(self, entry: TensorEntry, leaves: Tokens, tokens: int) -> TensorBranchKV:
        entry.lent_blocks = self.blocks_for(len(leaves) * tokens)
        return TensorBranchKV(self.shape, len(leaves), tokens)

    def release(self, entry: TensorEntry) -> None:
        super().release(entry)
        # It may have ended long before its limit.
        if entry.length and entry.capacity > 2 * entry.blocks * self._block:
            with contextlib.suppress(RuntimeError, OSError):  # out of memory: don't shrink it
                entry.resize(self.shape, self._capacity(entry.length))

    def _capacity(self, max_length: int) -> int:
        """Return the number of tokens to allocate.

        It is 1.5 times `max_length`, so that growing sequences seldom move.
        """
        return min(
            max(self._max_seq_len, max_length), self.blocks_for(max_length * 3 // 2) * self._block
        )


class Attending(Protocol):
    """New tokens in a forward pass, and the tokens that they attend to."""

    @property
    def count(self) -> int: ...

    def attend(
        self, layer: int, qkv: QKV, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        """Write the new keys and values, then attend.

        Maps query, key and value [1, heads, count, size] to [1, count, heads, size].
        """


class SegmentAttention:
    """Attention of the new tokens of one sequence."""

    def __init__(self, segment: Segment) -> None:
        self._entry = cast(TensorEntry, segment.entry)
        self.start = segment.start
        self.count = segment.count
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    @property
    def end(self) -> int:
        return self.start + self.count

    def attend(
        self, layer: int, qkv: QKV, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        query, key, value = qkv
        start, end = self.start, self.end
        keys, values = self._entry.layers[layer]
        keys[:, start:end] = key[0]
        values[:, start:end] = value[0]
        heads, kv_heads = query.shape[1], keys.shape[0]
        groups = heads // kv_heads
        outs = []
        for first, last in self.chunks(groups):
            part = query[:, :, first:last]
            if groups > 1:  # query heads that share a key head become additional rows
                part = part.reshape(1, kv_heads, groups * (last - first), -1)
            out = F.scaled_dot_product_attention(
                part,
                keys[None, :, : start + last],
                values[None, :, : start + last],
                attn_mask=self.mask(groups, (first, last), window, query),
                scale=scaling,
            )
            outs.append(out.reshape(1, heads, last - first, -1) if groups > 1 else out)
        return (outs[0] if len(outs) == 1 else torch.cat(outs, 2)).transpose(1, 2)

    def chunks(self, groups: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (first, end) of the new tokens, with masks of at most `MASK_VALUES` values.

        A single mask for a chunk of a long prompt could take gigabytes.
        """
        size = max(1, MASK_VALUES // (groups * self.end))
        for first in range(0, self.count, size):
            yield first, min(first + size, self.count)

    def mask(
        self, groups: int, part: tuple[int, int], window: int | None, like: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the mask to add to the scores of a part, or None if it needs none.

        The shape is [groups * size of the part, end of the part]. The rows repeat for the `groups`
        query heads that share a key head. Parts of equal size share one mask, because it is aligned
        to the end of the part.
        """
        size, end = part[1] - part[0], self.start + part[1]
        if size == 1 and (window is None or end <= window):
            return None
        shape = (groups, size, window)
        if shape not in self._masks:
            query = torch.arange(self.end - size, self.end, device=like.device)[:, None]
            key = torch.arange(self.end, device=like.device)[None]
            hidden = key > query
            if window is not None:
                hidden |= key <= query - window
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            self._masks[shape] = mask.masked_fill_(hidden, -torch.inf).repeat(groups, 1)
        return self._masks[shape][:, self.end - end :]


class BranchAttention:
    """Attention of the next token of each branch after one shared text.

    The text and the branch's own tokens are two parts of one softmax. So the shared keys and values
    aren't copied. (FlashInfer calls this cascade inference.)
    """

    def __init__(self, segment: BranchSegment) -> None:
        self._entry = cast(TensorEntry, segment.entry)
        self._own = cast(TensorBranchKV, segment.own)
        self._leaves = segment.leaves
        self.count = segment.count
        self._hidden: dict[int | None, torch.Tensor] = {}

    def attend(
        self, layer: int, qkv: QKV, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        query, key, value = (part[0] for part in qkv)  # [heads, n, size]
        new = self._own.length
        own_keys, own_values = self._own.layers[layer]
        own_keys[:, :, new], own_values[:, :, new] = key, value
        own_keys, own_values = own_keys[:, :, : new + 1], own_values[:, :, : new + 1]
        end = int(self._leaves.max())
        keys, values = (part[:, :end] for part in self._entry.layers[layer])

        heads, count, size = query.shape
        kv_heads = len(keys)
        query = query * (size**-0.5 if scaling is None else scaling)
        query = query.view(kv_heads, -1, count, size)  # [kv heads, groups, n, size]
        # All branches share these keys, so one product suffices. [kv heads, groups * n, end]
        shared = query.flatten(1, 2) @ keys.transpose(1, 2)
        shared = shared.view(kv_heads, -1, count, end)
        # Each branch has its own keys: one product per branch. [kv heads, n, groups, new + 1],
        # transposed to the order of `shared`
        own = (query.transpose(1, 2) @ own_keys.transpose(2, 3)).transpose(1, 2)
        scores = torch.cat((shared, own), -1)
        scores.masked_fill_(self._hide(window, scores.device), -torch.inf)
        weights = scores.softmax(-1, torch.float32).to(query.dtype)
        shared, own = torch.split(weights, [end, new + 1], -1)
        out = (shared.flatten(1, 2) @ values).view(kv_heads, -1, count, values.shape[-1])
        out = out + (own.transpose(1, 2) @ own_values).transpose(1, 2)
        return out.reshape(1, heads, count, -1).transpose(1, 2)

    def _hide(self, window: int | None, device: torch.device) -> torch.Tensor:
        """Return a mask of the tokens hidden from each branch: [n, shared text + own tokens]."""
        if window not in self._hidden:
            own = self._own.length + 1
            leaves = torch.from_numpy(self._leaves).to(device)[:, None]
            shared = torch.arange(int(self._leaves.max()), device=device)[None]
            beyond = shared >= leaves
            mine = torch.arange(own, device=device)[None]
            positions = leaves + self._own.length
            if window is not None:
                beyond |= shared <= positions - window
            past = mine < (own - window if window is not None else 0)
            self._hidden[window] = torch.cat((beyond, past.expand(len(leaves), own)), 1)
        return self._hidden[window]


def attention_of(segment: Packed) -> Attending:
    if isinstance(segment, BranchSegment):
        return BranchAttention(segment)
    return SegmentAttention(segment)


def wanted_rows(segments: Sequence[Packed]) -> NDArray[np.int64]:
    """Return the indices in the packed row of the tokens whose logits are needed."""
    found = []
    at = 0
    for segment in segments:
        at += segment.count
        found.append(np.arange(at - segment.rows, at))
    return found[0] if len(found) == 1 else np.concatenate(found)


def use(segments: Sequence[Attending]) -> None:
    _current.segments = segments


def packed_attention(  # noqa: PLR0917 (transformers' interface)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 (part of the interface)
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Adapt `attend` to the signature that transformers' models call."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"its attention uses '{name}'")
    layer: Any = module.layer_idx
    qkv = (query, key, value)
    return attend(_current.segments, layer, qkv, scaling, sliding_window), None


def attend(
    segments: Sequence[Attending],
    layer: int,
    qkv: QKV,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attend per segment: query, key, value [1, heads, tokens, size] to [1, tokens, heads, size].

    Writes the new keys and values into the segments' entries.
    """
    if len(segments) == 1:
        return segments[0].attend(layer, qkv, scaling, window)
    counts = [segment.count for segment in segments]
    parts = zip(*(torch.split(tensor, counts, 2) for tensor in qkv), strict=True)
    outs = [
        segment.attend(layer, part, scaling, window)
        for segment, part in zip(segments, parts, strict=True)
    ]
    return torch.cat(outs, 1)


def record_shapes(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *_args: Any,
    sliding_window: int | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Skip attention, but record the shapes of a layer's keys and values, and an ignored window.

    attention_mask: from `window_as_mask`, unless the model makes its own.
    """
    _current.shapes[module.layer_idx] = (key.shape[1], key.shape[3], value.shape[3])
    if attention_mask is not None and attention_mask.dtype == torch.int64:
        window = int(attention_mask.flatten()[0])
        if window and window != sliding_window:
            _current.ignored_windows.append(window)
    batch, heads, tokens, _size = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[3]), None


def window_as_mask(*, local_size: int | None = None, **_kwargs: Any) -> torch.Tensor:
    """Return the window that transformers' mask would have (0: none), instead of the mask."""
    return torch.full((1, 1, 1, 1), local_size or 0)


def recorded_shapes(
    run: Callable[[], object],
) -> tuple[tuple[tuple[int, int, int], ...], int | None]:
    """Return what `record_shapes` recorded during the forward pass `run` of one token.

    First (heads, key size, value size) per layer. Then the smallest sliding window that a layer has
    only in transformers' mask, so that `packed_attention` would ignore it, or None.
    """
    _current.shapes, _current.ignored_windows = {}, []
    run()
    shapes = _current.shapes
    layers = tuple(shapes[layer] for layer in range(len(shapes)))
    return layers, min(_current.ignored_windows, default=None)
