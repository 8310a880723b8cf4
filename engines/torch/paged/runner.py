"""Steps of a Llama model over the paged cache, padded to a few sizes that CUDA can replay."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.torch.attention import Packed, wanted_rows
from tandem.engines.torch.fused_llama import FusedLlama
from tandem.engines.torch.paged.attention import PagedStep, choose, gathered
from tandem.engines.torch.paged.batch import (
    Bucket,
    PagedBatch,
    PagedRow,
    buckets,
    places,
    rows_of,
    write,
)
from tandem.engines.torch.paged.choosing import TokenChoice, TokenChooser
from tandem.engines.torch.paged.paged_kv_cache import PagedKVCache
from tandem.engines.torch.scores import StepLogits
from tandem.engines.torch.settings import TorchSettings

log = logging.getLogger(__name__)

MAX_ROWS = 64
# Maximum tokens of a padded step. Larger steps don't wait for kernel launches.
MAX_TOKENS = 256
# Minimum width: the next call of a draft has one or two new tokens.
MIN_WIDTH = 2


class PagedRunner:
    """Runs steps. A step that fits a bucket is padded and, on CUDA, replayed as a graph.

    On a CPU, a padded step runs without a graph but computes the same.
    """

    def __init__(
        self, llama: FusedLlama, cache: PagedKVCache, settings: TorchSettings, vocab_size: int
    ) -> None:
        self._llama = llama
        self._pool = cache.pool
        self.device = cache.pool.memory.device
        self._attention = choose(cache.pool, llama.num_heads, llama.windows)
        longest = cache.blocks_for(settings.max_seq_len)
        max_tokens = min(MAX_TOKENS, settings.max_batch_tokens)
        max_width = max(MIN_WIDTH, settings.max_draft_len + 1)
        self.buckets = [
            bucket
            for bucket in buckets(MAX_ROWS, max_width, longest, max_tokens)
            if self._attention is gathered or bucket.pages == longest  # others skip unused pages
        ]
        size = max(_size(bucket) for bucket in self.buckets)
        self._numbers = torch.zeros(size, dtype=torch.int32, device=self.device)
        self._staging = torch.zeros(size, dtype=torch.int32, pin_memory=self._on_cuda)
        tokens = max(bucket.tokens for bucket in self.buckets)
        dtype = cache.shape.dtype
        self._logits = torch.zeros((tokens, vocab_size), dtype=dtype, device=self.device)
        self._best = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def capture(self) -> None:
        """Capture a graph per bucket, the largest first, so that all graphs share its memory.

        Does nothing on a CPU. Not run on CUDA yet.
        """
        if not self._on_cuda:
            return
        torch.cuda.set_device(self.device)  # for this thread, which runs every step
        began, before = time.monotonic(), torch.cuda.mem_get_info(self.device)[0]
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self.buckets):
            for _ in range(2):  # lets libraries create handles and select kernels
                self._run_padded(bucket)
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._run_padded(bucket)
            self._graphs[bucket] = graph
        taken = before - torch.cuda.mem_get_info(self.device)[0]
        seconds = time.monotonic() - began
        log.info(
            "captured %d CUDA graphs in %.1f s; they use %d MiB",
            len(self._graphs),
            seconds,
            taken >> 20,
        )

    def step(
        self,
        ids: NDArray[np.int64],
        segments: Sequence[Packed],
        choices: Sequence[TokenChoice | None] = (),
    ) -> StepLogits:
        """Run the segments' tokens, ids [all tokens], and choose tokens from their logits.

        choices: one per segment; None: the call chooses from its logits itself. One copy brings the
        chosen tokens to the host; it waits for the step.
        """
        if not any(choices):
            return StepLogits(self.logits(ids, segments)[0])
        chooser = TokenChooser(choices, [segment.rows for segment in segments], self.device)
        logits, best = self.logits(ids, segments)
        tokens, log_probs = chooser.choose(logits, best)
        parts = [tokens.int()]
        if log_probs is not None:
            parts.append(log_probs.view(torch.int32))
        host = torch.stack(parts).cpu().numpy()
        rated = None if log_probs is None else host[1].view(np.float32).tolist()
        return StepLogits(logits, host[0].tolist(), rated)

    def logits(
        self, ids: NDArray[np.int64], segments: Sequence[Packed]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [wanted rows, vocab_size] and the best token of each row [wanted rows]."""
        rows = rows_of(segments)
        wanted = wanted_rows(segments)
        bucket = self._bucket(rows)
        if bucket is None or not len(wanted):
            return self._exact(ids, rows, wanted)
        return self._padded(bucket, ids, rows, wanted)

    def _bucket(self, rows: Sequence[PagedRow]) -> Bucket | None:
        """Return the cheapest bucket that fits these texts, or None."""
        page_tokens = self._pool.page_tokens
        return next((b for b in self.buckets if b.holds(rows, page_tokens)), None)

    def _padded(
        self,
        bucket: Bucket,
        ids: NDArray[np.int64],
        rows: Sequence[PagedRow],
        wanted: NDArray[np.int64],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        staged = _batch(self._staging, bucket)
        write(staged, ids, rows, self._pool.page_tokens)
        at = places(rows, bucket.width)[wanted]
        staged.wanted[: len(at)] = torch.from_numpy(at)
        size = _size(bucket)
        self._numbers[:size].copy_(self._staging[:size], non_blocking=True)
        self._replay(bucket)
        chosen = _batch(self._numbers, bucket).wanted[: len(at)]
        return self._logits.index_select(0, chosen), self._best.index_select(0, chosen)

    def _replay(self, bucket: Bucket) -> None:
        """Run the batch in `_numbers`. Writes `_logits` and `_best`."""
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._run_padded(bucket)

    def _run_padded(self, bucket: Bucket) -> None:
        """Run the batch kernel by kernel. A graph consists of the same kernels."""
        logits = self._run(_batch(self._numbers, bucket), None)
        self._logits[: bucket.tokens].copy_(logits)
        torch.argmax(logits, -1, out=self._best[: bucket.tokens])

    def _exact(
        self, ids: NDArray[np.int64], rows: Sequence[PagedRow], wanted: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pages = max(len(row.pages) for row in rows)
        sizes = (len(ids), len(rows), pages, max(row.new for row in rows))
        memory = torch.empty(PagedBatch.size_of(*sizes[:3]), dtype=torch.int32)
        write(PagedBatch(memory, *sizes), ids, rows, self._pool.page_tokens)
        chosen = torch.from_numpy(wanted).to(self.device)
        logits = self._run(PagedBatch(memory.to(self.device), *sizes), chosen)
        return logits, logits.argmax(-1)

    def _run(self, batch: PagedBatch, rows: torch.Tensor | None) -> torch.Tensor:
        step = PagedStep(batch, self._pool, self._attention)
        return self._llama.forward(batch.ids, batch.positions, rows, [step])


def _size(bucket: Bucket) -> int:
    return PagedBatch.size_of(bucket.tokens, bucket.rows, bucket.pages)


def _batch(numbers: torch.Tensor, bucket: Bucket) -> PagedBatch:
    return PagedBatch(numbers, bucket.tokens, bucket.rows, bucket.pages, bucket.width)
