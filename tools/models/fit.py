"""Estimates whether models fit into free memory, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tandem.engines.torch.settings import UNPAGED_GROWTH
from tandem.tools.errors import TandemError
from tandem.tools.models.weights import gigabytes, item_bytes
from tandem.tools.profiles.checkpoint import read_checkpoint, read_config
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.torch import TorchDraft
from tandem.tools.profiles.machine import free_gpu_memory, free_memory

ENGINE_BYTES = 500_000_000  # used by a process with PyTorch before it loads a model
FLOAT32 = 4
Job = Literal["target", "draft"]
JOBS: tuple[Job, ...] = ("target", "draft")


@dataclass(frozen=True)
class Need:
    """The memory that one engine needs.

    weights: bytes. token_bytes: bytes per token in the KV cache. kv_tokens: the planned size of the
    KV cache in tokens. max_seq_len: its minimum size in tokens, one whole sequence.
    """

    weights: int
    token_bytes: int
    kv_tokens: int
    max_seq_len: int

    @property
    def fixed(self) -> int:
        """Bytes for the weights and the process, without the KV cache."""
        return self.weights + ENGINE_BYTES


@dataclass(frozen=True)
class Fit:
    """The memory that the engines of a deployment need, and the free memory in bytes."""

    needs: Mapping[Job, Need]
    free: int
    on_gpu: bool

    @property
    def needed(self) -> int:
        """Bytes for all engines, with the smallest KV caches: one whole sequence each."""
        return sum(need.fixed + need.token_bytes * need.max_seq_len for need in self.needs.values())

    @property
    def fits(self) -> bool:
        return self.needed <= self.free

    def check(self) -> None:
        if self.fits:
            return
        parts = [
            f"{gigabytes(need.weights)} of weights and {gigabytes(need.token_bytes * length)} for "
            f"{length} tokens in {job}"
            for job, need in self.needs.items()
            for length in [need.max_seq_len]
        ]
        memory = "GPU memory" if self.on_gpu else "memory"
        raise TandemError(
            f"the models need about {gigabytes(self.needed)} of {memory} ({', '.join(parts)}), and "
            f"{gigabytes(self.free)} are free; use smaller models"
        )

    def kv_cache_tokens(self) -> dict[str, int]:
        """Return each engine's KV-cache size in tokens: the plan's, or less if memory is short."""
        left = self.free - sum(need.fixed for need in self.needs.values())
        wanted = sum(need.token_bytes * need.kv_tokens for need in self.needs.values())
        share = min(1.0, left / max(wanted, 1))
        return {
            job: max(need.max_seq_len, int(need.kv_tokens * share))
            for job, need in self.needs.items()
        }


def fit_of(deployment: Deployment, num_parameters: Mapping[Job, int]) -> Fit:
    """Estimate the memory that a deployment of checkpoints needs.

    num_parameters: each engine's number of weights, which may not be downloaded yet.
    """
    engines = deployment.profile.engines
    sections: dict[Job, TorchDraft] = {job: getattr(engines, job) for job in num_parameters}
    gpu = free_gpu_memory(min(section.gpu_memory_fraction for section in sections.values()))
    needs = {}
    for job, section in sections.items():
        # A CPU computes in float32, a GPU in the checkpoint's type. An unpaged KV cache on a GPU
        # takes more memory than its tokens.
        folder, plan = section.checkpoint, getattr(deployment, job)
        size = FLOAT32 if gpu is None else item_bytes(read_config(folder))
        cached = read_checkpoint(folder, with_weights=False).kv_bytes_per_token * size // FLOAT32
        if gpu is not None and not section.paged_kv_cache:
            cached *= UNPAGED_GROWTH
        weights = num_parameters[job] * size
        needs[job] = Need(weights, cached, plan.kv_cache_tokens, plan.max_seq_len)
    return Fit(needs, free_memory() if gpu is None else gpu, on_gpu=gpu is not None)
