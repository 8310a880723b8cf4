"""The llamacpp engine: runs a GGUF file and its KV cache in llama.cpp, through its C API.

A text is one of llama.cpp's sequences. Sequences share the cells of a common prefix. A token's
logits depend on its text alone, so neither drafts nor other texts can change an output. This needs:

- flash attention, and keys and values of different types: with equal types, llama.cpp's CPU backend
  splits a single token's attention among its threads, and computes 64 tokens or more in tiles, and
  each way adds in another order (ggml_compute_forward_flash_attn_ext_f16 in ggml-cpu/ops.cpp)
- cells in the order of a text's tokens, because attention adds in the order of cells; see
  `LlamaCppCache`
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.engine import Floats
from tandem.engines.errors import LoadError
from tandem.engines.kinds import LLAMACPP
from tandem.engines.llamacpp import api
from tandem.engines.llamacpp.settings import GGUF_FILE, LlamaCppSettings
from tandem.engines.stepping.engine import SteppingEngine
from tandem.engines.stepping.kv_cache import (
    BranchKV,
    KVCache,
    KVEntry,
    Owner,
    Packed,
    Segment,
    Tokens,
)

SEQUENCES = 256  # llama.cpp's limit
DROPPED = 0  # the sequence that holds the cells of dropped tokens
MAX_DROPPED = 1024  # in a step of 16 texts, 1,000 more cells take 3% more time
CHECK_TOKENS = 5
llama = api.open_library()
log = logging.getLogger(__name__)


@dataclass(eq=False)
class SequenceEntry(KVEntry):
    """One of llama.cpp's sequences."""

    sequence: int = -1


class BranchSequences(BranchKV):
    """A sequence per branch; they continue prefixes of the call's text."""

    def __init__(self, cache: LlamaCppCache, source: int, leaves: Tokens) -> None:
        self._cache = cache
        self.leaves: list[int] = leaves.tolist()
        self.sequences = [cache.copy_of(source, leaf) for leaf in self.leaves]

    def keep(self, rows: list[int]) -> None:
        kept = [self.sequences[row] for row in rows]
        for sequence in set(self.sequences) - set(kept):
            self._cache.free(sequence)
        self.sequences = kept
        self.leaves = [self.leaves[row] for row in rows]


class LlamaCppCache(KVCache[SequenceEntry]):
    """The cells of llama.cpp's KV cache.

    llama.cpp puts new tokens into the first free cells, which may lie before the other cells of the
    same text. So no cell is freed alone: the sequence DROPPED takes over the cells of dropped
    tokens. When there are too many of them, or no free cell is left, `compact` frees them all.

    window: length of the model's sliding window in tokens; 0: none.
    """

    def __init__(self, context: Any, settings: LlamaCppSettings, window: int) -> None:
        super().__init__(settings.kv_cache_tokens, settings.kv_block_tokens)
        self._context = context
        self._memory = llama.llama_get_memory(context)
        self._window = window
        self._cells = max(settings.kv_cache_tokens, SEQUENCES)
        self._used = 0  # number of cells up to the last one that isn't free
        self._dropped = 0  # tokens whose cells DROPPED has, at most
        self._free = list(range(DROPPED + 1, SEQUENCES))
        self._branches: dict[SequenceEntry, BranchSequences] = {}

    def make_room(self, tokens: int) -> None:
        """Make sure that the next step's tokens find free cells behind all others."""
        full = self._used + tokens > self._cells
        room = self._cells - min(MAX_DROPPED, self._cells // 8)
        while full and self._num_tokens() + tokens > room and self.drop_oldest():
            pass
        if full or self._dropped > max(MAX_DROPPED, self._num_tokens() // 4):
            self.compact()
        self._used += tokens

    def compact(self) -> None:
        """Move all texts to the first cells, in the order of their tokens."""
        try:
            self._used = self._move_all()
            self._dropped = 0
        except BaseException:
            llama.llama_memory_clear(self._memory, False)
            for entry in self._entries:
                entry.length = 0
            self._used = self._dropped = 0
            raise

    def _move_all(self) -> int:
        """Copy all texts, free all cells, and restore the texts. Return the cells in use.

        A prefix that an earlier text also has is copied once. With a sliding window, that text may
        lack the prefix's last window.
        """
        parts: list[tuple[int, int, int]] = []  # sequence, the one that has its prefix, its length
        for number, entry in enumerate(self._entries):
            self.trim(entry)
            others = [] if self._window else self._entries[:number]
            before = [e for e in others if e.owner == entry.owner]
            same = [e.shared_prefix(entry.tokens[: entry.length]) for e in before]
            shared = max(same, default=0)
            source = before[same.index(shared)].sequence if shared else entry.sequence
            parts.append((entry.sequence, source, shared))
        for entry, kv in self._branches.items():
            leaves = zip(kv.sequences, kv.leaves, strict=True)
            parts += [(sequence, entry.sequence, leaf) for sequence, leaf in leaves]
        copies = []
        for sequence, _, shared in parts:
            if shared:
                llama.llama_memory_seq_rm(self._memory, sequence, 0, shared)
            copies.append(self._copy(sequence))
        llama.llama_memory_clear(self._memory, False)
        for (sequence, source, shared), data in zip(parts, copies, strict=True):
            place = data.ctypes.data, data.size, sequence
            if not llama.llama_state_seq_set_data(self._context, *place):
                raise RuntimeError("llama.cpp can't move a text within its KV cache")
            if shared:
                llama.llama_memory_seq_cp(self._memory, source, sequence, 0, shared)
        return self._num_tokens() - sum(shared for *_, shared in parts[: len(self._entries)])

    def trim(self, entry: SequenceEntry) -> None:
        """Drop rejected tokens."""
        self._drop_tokens(entry.sequence, entry.length)

    def free(self, sequence: int) -> None:
        self._drop_tokens(sequence, 0)
        self._free.append(sequence)

    def copy_of(self, source: int, tokens: int) -> int:
        """Return a new sequence that starts with `tokens` tokens of another one."""
        sequence = self._free.pop()
        llama.llama_memory_seq_cp(self._memory, source, sequence, 0, tokens)
        return sequence

    def drop_oldest(self, keep: SequenceEntry | None = None) -> bool:
        """Drop the least recently used idle text except `keep`. Return whether there was one."""
        idle = next((e for e in self._entries if not e.busy and e is not keep), None)
        if idle is not None:
            self.drop(idle)
        return idle is not None

    def branch_room(self, branches: int, tokens: int) -> int:
        room = super().branch_room(branches, tokens)
        for entry in self._stale():
            if len(self._free) >= branches:
                break
            self.drop(entry)
        return min(room, len(self._free) * tokens)

    def branch_kv(self, entry: SequenceEntry, leaves: Tokens, tokens: int) -> BranchSequences:
        entry.lent_blocks = self.blocks_for(len(leaves) * tokens)
        self._branches[entry] = BranchSequences(self, entry.sequence, leaves)
        return self._branches[entry]

    def release(self, entry: SequenceEntry) -> None:
        self._end_branches(entry)
        super().release(entry)
        if entry.length:
            self.trim(entry)
        else:
            self.free(entry.sequence)

    def drop(self, entry: SequenceEntry) -> None:
        self._end_branches(entry)
        super().drop(entry)
        self.free(entry.sequence)

    def _new_entry(
        self,
        source: SequenceEntry | None,
        shared: int,
        max_length: int,  # noqa: ARG002  (memory is allocated already)
    ) -> SequenceEntry | None:
        if not self._free and not self.drop_oldest(keep=source):
            return None
        if source is None or not shared:
            return SequenceEntry(sequence=self._free.pop())
        return SequenceEntry(sequence=self.copy_of(source.sequence, shared))

    def _cut(self, entry: SequenceEntry, shared: int, max_length: int) -> None:  # noqa: ARG002
        entry.length = shared

    def _longest_prefix(self, tokens: Tokens, owner: Owner) -> tuple[SequenceEntry | None, int]:
        """Return the entry with the longest prefix, if it still has what the next token needs.

        llama.cpp copies only the last window of a text. A shorter prefix would need more.
        """
        entry, shared = super()._longest_prefix(tokens, owner)
        if self._window and entry is not None and shared < entry.length:
            oldest = llama.llama_memory_seq_pos_min(self._memory, entry.sequence)
            if oldest > max(0, shared - self._window + 1):
                return None, 0
        return entry, shared

    def _num_tokens(self) -> int:
        branches = sum(len(kv.sequences) * kv.length for kv in self._branches.values())
        return sum(entry.length for entry in self._entries) + branches

    def _copy(self, sequence: int) -> NDArray[np.uint8]:
        size = llama.llama_state_seq_get_size(self._context, sequence)
        data = np.empty(size, np.uint8)
        place = data.ctypes.data, size, sequence
        if llama.llama_state_seq_get_data(self._context, *place) != size:
            raise RuntimeError("llama.cpp can't copy a text of its KV cache")
        return data

    def _drop_tokens(self, sequence: int, start: int) -> None:
        end = llama.llama_memory_seq_pos_max(self._memory, sequence) + 1
        if end > start:
            self._dropped += end - start
            llama.llama_memory_seq_cp(self._memory, sequence, DROPPED, start, -1)
            llama.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def _end_branches(self, entry: SequenceEntry) -> None:
        if branches := self._branches.pop(entry, None):
            branches.keep([])


class _Batch:
    """The tokens of a forward pass. wanted: whether a token's logits are needed."""

    def __init__(self, size: int) -> None:
        self.tokens, self.positions, self.sequences = np.zeros((3, size), np.int32)
        self.wanted = np.zeros(size, np.int8)
        self._ones = np.ones(size, np.int32)  # each token belongs to one sequence
        self._pointers = self.sequences.ctypes.data + 4 * np.arange(size)

    def of(self, count: int) -> api.Batch:
        """Return the first `count` tokens."""
        return api.Batch(
            n_tokens=count,
            token=self.tokens.ctypes.data,
            pos=self.positions.ctypes.data,
            n_seq_id=self._ones.ctypes.data,
            seq_id=self._pointers.ctypes.data,
            logits=self.wanted.ctypes.data,
        )


class LlamaCppModel:
    """A loaded GGUF file; see `StepModel`."""

    def __init__(self, settings: LlamaCppSettings, file: Path) -> None:
        """Load the file and check that results are exact. Raises LoadError."""
        self._context: Any = None
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        options.n_gpu_layers = settings.n_gpu_layers
        # `tandem up` renders links, so resolve them to name the user's own file.
        path = file.resolve()
        self._model = api.load(llama, path, options)
        try:
            self._start(settings, path)
        except BaseException:
            self.close()
            raise

    def forward(self, ids: NDArray[np.int64], segments: Sequence[Packed]) -> Floats:
        batch = self._batch
        end = rows = 0
        for segment in segments:
            start, end = end, end + segment.count
            if isinstance(segment, Segment):
                entry: Any = segment.entry
                self.cache.trim(entry)
                batch.sequences[start:end] = entry.sequence
            else:
                branches: Any = segment.own
                batch.sequences[start:end] = branches.sequences
            batch.positions[start:end] = segment.positions
            batch.wanted[start:end] = 0
            batch.wanted[end - segment.rows : end] = 1
            rows += segment.rows
        batch.tokens[:end] = ids
        self.cache.make_room(end)
        if result := llama.llama_decode(self._context, batch.of(end)):
            raise RuntimeError(f"llama.cpp's decode function returned {result}")
        if not rows:
            return np.empty((0, self.vocab_size), np.float32)
        logits = llama.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (rows, self.vocab_size))

    def close(self) -> None:
        """Free the model's memory."""
        if self._context:
            llama.llama_free(self._context)
            self._context = None
        if self._model:
            llama.llama_model_free(self._model)
            self._model = None

    def _start(self, settings: LlamaCppSettings, path: Path) -> None:
        model = self._model
        for name in ("recurrent", "hybrid", "diffusion"):
            if getattr(llama, f"llama_model_is_{name}")(model):
                raise LoadError(f"{path} has a {name} architecture, which can't drop draft tokens")
        if llama.llama_model_has_encoder(model):
            raise LoadError(f"{path} has an encoder; only decoder-only models are supported")
        longest = llama.llama_model_n_ctx_train(model)
        if settings.max_seq_len > longest:
            raise LoadError(
                f"max_seq_len must be at most {longest}, the file's context length; got "
                f"{settings.max_seq_len}"
            )
        options = llama.llama_context_default_params()
        # With less room than one token per sequence, llama.cpp ends the process.
        options.n_ctx = max(settings.kv_cache_tokens, SEQUENCES)
        options.n_batch = options.n_ubatch = max(settings.max_batch_tokens, SEQUENCES)
        options.n_seq_max = SEQUENCES
        threads = settings.threads or len(os.sched_getaffinity(0))
        options.n_threads = options.n_threads_batch = threads
        options.kv_unified = True  # so that sequences share the cells of a prefix
        options.swa_full = True  # so that rejected tokens can be dropped
        options.flash_attn_type = api.FLASH_ATTENTION
        options.type_k, options.type_v = api.F16, api.BF16
        self._context = llama.llama_init_from_model(model, options)
        if not self._context:
            raise LoadError(f"llama.cpp can't run {path}: {api.reason()}")
        self._batch = _Batch(settings.max_batch_tokens)
        vocabulary = llama.llama_model_get_vocab(model)
        self.vocab_size: int = llama.llama_vocab_n_tokens(vocabulary)
        window = llama.llama_model_n_swa(model)
        self.cache = LlamaCppCache(self._context, settings, window)
        self._check(settings)

    def _check(self, settings: LlamaCppSettings) -> None:
        """Log a warning if a token's logits depend on the other tokens of a step."""
        count = min(CHECK_TOKENS, settings.max_seq_len, settings.max_batch_tokens // 2)
        if not 0 < 3 * count <= settings.kv_cache_tokens:
            return
        ids = np.arange(count) * 7 % self.vocab_size
        one, all_at_once, other = (SequenceEntry(sequence=number) for number in (1, 2, 3))
        rows = []
        for i in range(count):
            rows.append(self.forward(ids[i : i + 1], [Segment(one, 1, 1)]).copy())
            one.length += 1
        alone = np.concatenate(rows)
        if not np.isfinite(alone).all():
            raise LoadError("the file's logits aren't finite; download it again")
        together = [Segment(other, count, 0), Segment(all_at_once, count, count)]
        mixed = self.forward(np.concatenate((ids[::-1], ids)), together)
        if not np.array_equal(alone, mixed):
            log.warning(
                "with this build of llama.cpp, logits depend on the number of tokens per step (by "
                "up to %.2g), so drafts may change an output where two tokens are nearly tied",
                np.abs(alone - mixed).max(),
            )
        self.cache.compact()  # forgets these texts, which aren't the cache's own


class LlamaCppEngine(SteppingEngine):
    """Serves a GGUF file."""

    def __init__(self, settings: LlamaCppSettings, folder: Path) -> None:
        """Load the file and check it. Raises LoadError."""
        self._loaded: list[LlamaCppModel] = []

        def load_model() -> LlamaCppModel:
            model = LlamaCppModel(settings, folder / settings.checkpoint / GGUF_FILE)
            self._loaded.append(model)
            return model

        super().__init__(settings, LLAMACPP, load_model)

    def close(self) -> None:
        super().close()
        while self._loaded:
            self._loaded.pop().close()
