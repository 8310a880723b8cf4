"""Estimates whether models fit into free memory, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tandem.engines.checkpoint_files import GROWTH, kv_bytes_per_token
from tandem.engines.llamacpp.settings import GGUF_FILE, KV_ITEM_BYTES
from tandem.tools.errors import TandemError
from tandem.tools.models.gguf import gguf_bytes
from tandem.tools.models.weights import (
    check_architecture,
    check_weights,
    count_parameters,
    gigabytes,
    item_bytes,
)
from tandem.tools.profiles.checkpoint import read_checkpoint_config
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.base import EnginePlan
from tandem.tools.profiles.engines.llamacpp import LlamaCppDraft
from tandem.tools.profiles.engines.torch import TorchDraft
from tandem.tools.profiles.machine import free_gpu_memory, free_memory

ENGINE_BYTES = 500_000_000  # used by a process with PyTorch before it loads a model
FLOAT32 = 4
FIRST_GPU = "cuda:0"
Role = Literal["target", "draft"]
ROLES: tuple[Role, ...] = ("target", "draft")


class Need(NamedTuple):
    """The memory that one engine needs.

    weights: bytes. token_bytes: bytes per token in the KV cache. kv_tokens: the planned size of the
    KV cache in tokens. max_seq_len: its minimum size in tokens, one whole sequence.
    """

    weights: int
    token_bytes: int
    kv_tokens: int
    max_seq_len: int


def fitting_kv_caches(deployment: Deployment, num_parameters: Mapping[Role, int]) -> dict[str, int]:
    """Return each engine's KV-cache size in tokens: the plan's, or less if memory is short.

    num_parameters: each engine's number of weights, which may not be downloaded yet. Raises
    TandemError if the models don't fit even with KV caches of one whole sequence.
    """
    engines = deployment.profile.engines
    sections = [getattr(engines, role) for role in num_parameters]
    for section in sections:
        check_architecture(section.checkpoint)
    fractions = [s.gpu_memory_fraction for s in sections if isinstance(s, TorchDraft)]
    gpu = free_gpu_memory(min(fractions)) if fractions else None
    free = free_memory() if gpu is None else gpu
    needs = estimate_needs(deployment, num_parameters, on_gpu=gpu is not None)
    fixed = sum(need.weights + ENGINE_BYTES for need in needs.values())
    needed = fixed + sum(need.token_bytes * need.max_seq_len for need in needs.values())
    if needed > free:
        parts = [
            f"{gigabytes(need.weights)} of weights and "
            f"{gigabytes(need.token_bytes * need.max_seq_len)} for {need.max_seq_len} tokens in "
            f"{role}"
            for role, need in needs.items()
        ]
        memory = "memory" if gpu is None else "GPU memory"
        raise TandemError(
            f"the models need about {gigabytes(needed)} of {memory} ({', '.join(parts)}), and "
            f"{gigabytes(free)} are free; use smaller models"
        )
    wanted = sum(need.token_bytes * need.kv_tokens for need in needs.values())
    share = min(1.0, (free - fixed) / max(wanted, 1))
    return {
        role: max(need.max_seq_len, int(need.kv_tokens * share)) for role, need in needs.items()
    }


def check_fit(deployment: Deployment) -> None:
    """Raise TandemError if this machine can't load a profile's weights, or its KV caches.

    Only KV caches whose size the profile sets are checked, in the memory of their engine's device:
    the CPU or the first GPU.
    """
    sections = {role: getattr(deployment.profile.engines, role) for role in ROLES}
    ours = {r: s for r, s in sections.items() if isinstance(s, TorchDraft | LlamaCppDraft)}
    for section in ours.values():
        if isinstance(section, TorchDraft):
            check_architecture(section.checkpoint)
            check_weights(section.checkpoint)
    sized = {role: section for role, section in ours.items() if section.kv_cache_tokens}
    on_gpu = {
        role: section
        for role, section in sized.items()
        if isinstance(section, TorchDraft) and FIRST_GPU in section.devices
    }
    gpu = free_gpu_memory(min(s.gpu_memory_fraction for s in on_gpu.values())) if on_gpu else None
    if gpu is None:
        on_gpu = {}
    else:
        _check_kv_caches(deployment, on_gpu, gpu, on_gpu=True)
    on_cpu = {r: s for r, s in sized.items() if "cpu" in s.devices and r not in on_gpu}
    if on_cpu:
        _check_kv_caches(deployment, on_cpu, free_memory(), on_gpu=False)


def _check_kv_caches(
    deployment: Deployment,
    sections: Mapping[Role, TorchDraft | LlamaCppDraft],
    free: int,
    *,
    on_gpu: bool,
) -> None:
    """Raise TandemError if these engines need more than the free bytes of their memory."""
    counts = {role: count_parameters(section.checkpoint) for role, section in sections.items()}
    needs = estimate_needs(deployment, counts, on_gpu=on_gpu)
    needed = sum(n.weights + ENGINE_BYTES + n.token_bytes * n.kv_tokens for n in needs.values())
    if needed > free:
        role, need = max(needs.items(), key=lambda item: item[1].token_bytes * item[1].kv_tokens)
        raise TandemError(
            f"engines.{role}.kv_cache_tokens: {need.kv_tokens} tokens need "
            f"{gigabytes(need.token_bytes * need.kv_tokens)}; with the weights, the engines need "
            f"{gigabytes(needed)}, and {gigabytes(free)} are free"
        )


def estimate_needs(
    deployment: Deployment, num_parameters: Mapping[Role, int], *, on_gpu: bool
) -> dict[Role, Need]:
    """Estimate the memory that each engine of a deployment of checkpoints needs."""
    needs = {}
    for role, count in num_parameters.items():
        section: TorchDraft | LlamaCppDraft = getattr(deployment.profile.engines, role)
        plan: EnginePlan = getattr(deployment, role)
        if isinstance(section, LlamaCppDraft):  # weights stay as they are in the file
            file = section.checkpoint / GGUF_FILE
            cached = kv_bytes_per_token(
                read_checkpoint_config(section.checkpoint).get, KV_ITEM_BYTES
            )
            needs[role] = Need(gguf_bytes(file), cached, plan.kv_cache_tokens, plan.max_seq_len)
            continue
        # A CPU computes in float32, a GPU in the checkpoint's type. A KV cache on a GPU takes
        # more memory than its tokens.
        config = read_checkpoint_config(section.checkpoint)
        size = item_bytes(config) if on_gpu else FLOAT32
        cached = kv_bytes_per_token(config.get, size)
        if on_gpu:
            cached *= GROWTH
        needs[role] = Need(count * size, cached, plan.kv_cache_tokens, plan.max_seq_len)
    return needs
