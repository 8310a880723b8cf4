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
from tandem.engines.torch.paged.attention import PagedStep, attend_gathered, choose
from tandem.engines.torch.paged.batch import (
    PagedBatch,
    StepSize,
    buckets,
    make_batch,
    paged_rows,
    places,
    write,
)
from tandem.engines.torch.paged.paged_kv_cache import PagedKVCache
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
            # Other attentions skip unused pages.
            if self._attention is attend_gathered or bucket.pages == longest
        ]
        size = max(bucket.numbers for bucket in self.buckets)
        self._numbers = torch.zeros(size, dtype=torch.int32, device=self.device)
        self._staging = torch.zeros(size, dtype=torch.int32, pin_memory=self._on_cuda)
        tokens = max(bucket.tokens for bucket in self.buckets)
        dtype = cache.shape.dtype
        self._logits = torch.zeros((tokens, vocab_size), dtype=dtype, device=self.device)
        self._graphs: dict[StepSize, torch.cuda.CUDAGraph] = {}

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def capture(self) -> None:
        """Capture a graph per bucket, the largest first, so that all graphs share its memory.

        Does nothing on a CPU. Not tested on CUDA yet.
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

    def logits(self, ids: NDArray[np.int64], segments: Sequence[Packed]) -> torch.Tensor:
        """Run the segments' tokens, ids [all tokens]. Return logits [wanted rows, vocab_size]."""
        rows = [row for segment in segments for row in paged_rows(segment)]
        wanted, page_tokens = wanted_rows(segments), self._pool.page_tokens
        bucket = next((b for b in self.buckets if b.holds(rows, page_tokens)), None)
        if bucket is None or not len(wanted):
            batch = make_batch(ids, rows, page_tokens, self.device)
            return self._run(batch, torch.from_numpy(wanted).to(self.device))
        staged = PagedBatch(self._staging, bucket)
        write(staged, ids, rows, page_tokens)
        at = places(rows, bucket.width)[wanted]
        staged.wanted[: len(at)] = torch.from_numpy(at)
        used = slice(bucket.numbers)
        self._numbers[used].copy_(self._staging[used], non_blocking=True)
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._run_padded(bucket)
        chosen = PagedBatch(self._numbers, bucket).wanted[: len(at)]
        return self._logits.index_select(0, chosen)

    def _run_padded(self, bucket: StepSize) -> None:
        """Run the batch in `_numbers` kernel by kernel. Writes `_logits`.

        A graph consists of the same kernels.
        """
        self._logits[: bucket.tokens].copy_(self._run(PagedBatch(self._numbers, bucket), None))

    def _run(self, batch: PagedBatch, rows: torch.Tensor | None) -> torch.Tensor:
        step = PagedStep(batch, self._pool, self._attention)
        return self._llama.forward(batch.ids, batch.positions, rows, [step])
