"""Estimates whether models fit into free memory, before any of them is loaded.

The number of weights comes from the sizes of files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tandem.engines.checkpoint_files import GROWTH, kv_bytes_per_token
from tandem.engines.llamacpp.settings import GGUF_FILE, KV_ITEM_BYTES
from tandem.tools.errors import TandemError
from tandem.tools.models.gguf import gguf_bytes
from tandem.tools.profiles.checkpoint import read_checkpoint_config, weight_files
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.base import EnginePlan
from tandem.tools.profiles.engines.llamacpp import LlamaCppDraft
from tandem.tools.profiles.engines.torch import TorchDraft

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # cgroup v2; in a container, its own control group
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
    """Raise TandemError if a profile's KV caches don't fit into memory.

    Only KV caches whose size the profile sets are checked, in the memory of their engine's device:
    the CPU or the first GPU.
    """
    sections = {role: getattr(deployment.profile.engines, role) for role in ROLES}
    ours = {r: s for r, s in sections.items() if isinstance(s, TorchDraft | LlamaCppDraft)}
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
            config = read_checkpoint_config(section.checkpoint)
            # The engine copies texts to move them within its cache.
            cached = 2 * kv_bytes_per_token(config.get, KV_ITEM_BYTES)
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


def count_parameters(folder: Path) -> int:
    """Return the approximate number of weights in a checkpoint's folder; 0 without known files."""
    size = sum(path.stat().st_size for path in weight_files(folder))
    return size // item_bytes(read_checkpoint_config(folder))


def check_architecture(folder: Path) -> None:
    """Raise TandemError if the installed transformers doesn't know a checkpoint's architecture.

    The engine would report it too, but only after the weights are downloaded. Searches the names in
    the source of transformers, because importing it takes seconds.
    """
    kind, package = read_checkpoint_config(folder).get("model_type"), find_spec("transformers")
    if kind is None or package is None or package.origin is None or (folder / GGUF_FILE).exists():
        return
    sources = Path(package.origin).parent.glob("models/auto/*.py")
    names = {name for path in sources for name in re.findall(r'"([\w.-]+)"', path.read_text())}
    if "llama" in names and kind not in names:
        raise TandemError(
            f"{folder}: architecture '{kind}' isn't known to transformers "
            f"{metadata.version('transformers')}; a newer version may know it"
        )


def item_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes per weight in a checkpoint's files. config: its config.json."""
    return ITEM_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size, 1e6) / 1e6:.0f} MB"


def free_memory() -> int:
    """Return the bytes that a new process can allocate within the container's limit."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())
    free = int(available.group(1)) * 1024 if available else 0
    limited = _memory_below_limit()
    return free if limited is None else min(free, limited)


def _memory_below_limit() -> int | None:
    """Return the bytes left under the control group's memory limit, or None without a limit."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        statistics = (CGROUP / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max":
        return None
    files = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    return max(int(limit) - used + (int(files.group(1)) if files else 0), 0)


def count_gpus() -> int:
    return next(iter(_ask_torch("torch.cuda.device_count()")), 0)


def free_gpu_memory(fraction: float) -> int | None:
    """Return the bytes that a new process can allocate on the first GPU, or None without a GPU.

    fraction: the maximum share of the GPU's memory in use, including other processes.
    """
    memory = _ask_torch("*torch.cuda.mem_get_info() if torch.cuda.is_available() else ()")
    if not memory:
        return None
    free, total = memory
    return max(0, int(fraction * total) - (total - free))


def _ask_torch(question: str) -> list[int]:
    """Return the numbers that a PyTorch expression yields.

    Evaluates it in a separate process, because importing PyTorch takes seconds and memory.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    asked = subprocess.run(
        [sys.executable, "-c", f"import torch; print({question})"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(number) for number in asked.stdout.split()] if asked.returncode == 0 else []
