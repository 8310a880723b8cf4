"""Steps of a Llama model over the paged cache, padded to a few sizes that CUDA can replay."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

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
from tandem.engines.torch.paged.cache import PagedKVCache
from tandem.engines.torch.paged.choosing import Chosen, TokenChoice, TokenChooser
from tandem.engines.torch.scores import StepLogits
from tandem.engines.torch.settings import TorchSettings

log = logging.getLogger(__name__)

MAX_ROWS = 64
# Of a step that is padded: in larger ones, launching kernels is no longer the cost.
MAX_TOKENS = 256
# Of an engine that verifies nothing: a draft's next call brings one or two new tokens.
MIN_WIDTH = 2
# That run without a look at their tokens: so long does a call that arrives wait at most.
RUN_STEPS = 8


class PreparedSteps(NamedTuple):
    """Steps of one token each behind one another, whose numbers are on the device but for the ids.

    numbers: [steps, size of a batch]. rows: how many texts there are; the others are padding.
    """

    bucket: Bucket
    numbers: torch.Tensor
    rows: int

    @property
    def steps(self) -> int:
        return len(self.numbers)


class PagedRunner:
    """Runs steps. Those that fit into a bucket are padded and, on CUDA, replayed as a graph.

    On a CPU a padded step runs as it is; so what a graph computes is what runs there.
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
        sizes = [_size(bucket) for bucket in self.buckets if bucket.width == 1]
        self._prepared = torch.zeros(
            (RUN_STEPS - 1) * max(sizes), dtype=torch.int32, pin_memory=self._on_cuda
        )

    @property
    def _on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def capture(self) -> None:
        """Capture a graph of each bucket, the largest first, so that all share its memory.

        On a CPU there is nothing to capture. Never run on CUDA yet.
        """
        if not self._on_cuda:
            return
        torch.cuda.set_device(self.device)  # of this thread, which runs every step
        began, before = time.monotonic(), torch.cuda.mem_get_info(self.device)[0]
        memory = torch.cuda.graph_pool_handle()
        for bucket in reversed(self.buckets):
            for _ in range(2):  # libraries make their handles and choose their kernels
                self._run_padded(bucket)
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._run_padded(bucket)
            self._graphs[bucket] = graph
        taken = before - torch.cuda.mem_get_info(self.device)[0]
        seconds = time.monotonic() - began
        log.info("%d CUDA graphs in %.1f s, %d MiB", len(self._graphs), seconds, taken >> 20)

    def step(
        self, ids: NDArray[np.int64], segments: Sequence[Packed]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the segments' tokens, ids [all tokens].

        Return logits [rows wanted, vocab_size] and the best token [rows wanted] of each. Whoever
        copies something of them to the host waits until all of it has run.
        """
        rows = rows_of(segments)
        wanted = wanted_rows(segments)
        bucket = self._bucket(rows)
        if bucket is None or not len(wanted):
            return self._exact(ids, rows, wanted)
        return self._padded(bucket, ids, rows, wanted)

    def prepare(self, rows: Sequence[PagedRow], steps: int) -> PreparedSteps | None:
        """Send ahead what is known of the steps behind this one, which bring each text one token.

        None: these texts fit into no padded step.
        """
        count = min(steps, RUN_STEPS - 1)
        last = [PagedRow(row.start + row.new + count - 1, 1, row.pages) for row in rows]
        bucket = self._bucket(last)
        if bucket is None:
            return None
        numbers = self._prepared[: count * _size(bucket)].view(count, -1)
        unknown = np.zeros(len(rows), np.int64)
        for step, memory in enumerate(numbers):
            behind = [PagedRow(row.start + row.new + step, 1, row.pages) for row in rows]
            write(_batch(memory, bucket), unknown, behind, self._pool.page_tokens)
        sent = numbers.to(self.device, non_blocking=True)
        return PreparedSteps(bucket, sent, len(rows))

    def step_ahead(
        self, prepared: PreparedSteps, step: int, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a prepared step on tokens [texts]; return as `step` does."""
        bucket, numbers, count = prepared
        self._numbers[: numbers.shape[1]].copy_(numbers[step])
        _batch(self._numbers, bucket).ids[:count].copy_(tokens)
        self._replay(bucket)
        return self._logits[:count].clone(), self._best[:count].clone()

    def _bucket(self, rows: Sequence[PagedRow]) -> Bucket | None:
        """Return the cheapest size that these texts fit into; None: they are too many or long."""
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
        """Compute what `_numbers` says into `_logits` and `_best`."""
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._run_padded(bucket)

    def _run_padded(self, bucket: Bucket) -> None:
        """Do it kernel by kernel: what a graph holds."""
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


def run_steps(
    runner: PagedRunner,
    ids: NDArray[np.int64],
    segments: Sequence[Packed],
    choices: Sequence[TokenChoice | None],
    steps: int,
) -> list[StepLogits]:
    """Run the segments' tokens, ids [all tokens], then up to `steps` - 1 times what each chose.

    choices: of each segment, or None: the call chooses from its logits itself. Where there is more
    than one step, each segment is one row and has a choice. What is chosen comes to the host in one
    copy.
    """
    ahead = runner.prepare(rows_of(segments), steps - 1) if steps > 1 else None
    count = 1 + ahead.steps if ahead else 1
    counts = [segment.rows for segment in segments]
    chooser = TokenChooser(choices, counts, count, runner.device)
    logits, best = runner.step(ids, segments)
    if not any(choices):
        return [StepLogits(logits)]
    rows, chosen = [logits], [chooser.choose(0, logits, best)]
    for step in range(1, count):
        assert ahead is not None
        logits, best = runner.step_ahead(ahead, step - 1, chosen[-1].tokens)
        rows.append(logits)
        chosen.append(chooser.choose(step, logits, best))
    return _on_host(rows, chosen)


def _on_host(rows: Sequence[torch.Tensor], chosen: Sequence[Chosen]) -> list[StepLogits]:
    """Copy the tokens of all steps, and how likely they are, at once."""
    parts = [torch.stack([step.tokens for step in chosen]).int()]
    rated = [step.log_probs for step in chosen if step.log_probs is not None]
    if rated:
        parts.append(torch.stack(rated).view(torch.int32))
    tokens, *log_probs = torch.stack(parts).cpu().numpy()  # and waits until all of it has run
    values = log_probs[0].view(np.float32).tolist() if log_probs else [None] * len(rows)
    return list(map(StepLogits, rows, tokens.tolist(), values))
