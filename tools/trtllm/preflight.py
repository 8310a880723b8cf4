"""What must hold before a GPU hour is spent, beyond what reading the profile has checked."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import has_weights
from ..doctor import Finding
from ..kinds.tensorrtllm import TensorRTLLMDraft
from .memory import Gpu, gpus
from .steps import UNSEEN, Step

COMPUTE_CAPABILITY = 8.0  # Ampere, says TensorRT-LLM's support matrix
FP8_CAPABILITY = 8.9  # Ada has the first FP8 tensor cores


@dataclass(frozen=True)
class SeenGpu:
    """What nvidia-smi says of one GPU."""

    memory_gib: float
    compute_capability: float


def seen_gpus() -> dict[int, SeenGpu]:
    """Ask nvidia-smi; nothing where there is none."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {}
    query = ("--query-gpu=index,memory.total,compute_cap", "--format=csv,noheader,nounits")
    listed = subprocess.run([smi, *query], capture_output=True, text=True, check=False)
    return {} if listed.returncode else _parse(listed.stdout)


def _parse(listing: str) -> dict[int, SeenGpu]:
    rows = (line.split(",") for line in listing.splitlines())
    return {
        int(index): SeenGpu(float(mebibytes) / 1024, float(capability))
        for index, mebibytes, capability in rows
    }


def examine_checkpoints(engines: Mapping[str, TensorRTLLMDraft]) -> Iterator[Finding]:
    """Name the checkpoints that are not here: what they would tell is not checked."""
    for name, engine in engines.items():
        if not engine.checkpoint.is_dir():
            yield Finding(
                f"{name}: checkpoint",
                f"no folder {engine.checkpoint} here",
                None,
                f"its sizes and vocabulary are not checked, and it is taken for a {UNSEEN}",
            )


def examine(
    engines: Mapping[str, TensorRTLLMDraft], seen: Mapping[int, SeenGpu]
) -> Iterator[Finding]:
    """Check the GPUs that the profile names: how new they are, and whether everything fits."""
    for name, engine in engines.items():
        yield from _capabilities(name, engine, seen)
    for gpu in memory_of(engines, seen):
        yield from _memory(gpu)


def examine_tools(
    engines: Mapping[str, TensorRTLLMDraft], steps: tuple[Step, ...], seen: Mapping[int, SeenGpu]
) -> Iterator[Finding]:
    """Check what building needs on this machine: weights, NVIDIA's tools, GPUs."""
    for name, engine in engines.items():
        found, mend = str(engine.checkpoint), "fetch its *.safetensors (git lfs pull)"
        yield Finding(f"{name}: weights", found, has_weights(engine.checkpoint), mend)
        workers = engine.build.workers or 1
        mend = f"trtllm-build wants {workers} to build at once; lower workers"
        yield Finding(f"{name}: GPUs", f"{len(seen)} here", len(seen) >= workers, mend)
    for tool in sorted({_tool(step) for step in steps}):
        there = Path(tool).is_file() or shutil.which(tool) is not None
        mend = "run in NVIDIA's image (docs/tensorrt-llm.md), or say --examples DIR"
        yield Finding("tool", tool, there, mend)


def memory_of(engines: Mapping[str, TensorRTLLMDraft], seen: Mapping[int, SeenGpu]) -> list[Gpu]:
    """Return who takes what of which GPU."""
    return gpus(engines, {number: gpu.memory_gib for number, gpu in seen.items()})


def _tool(step: Step) -> str:
    return step.argv[1] if step.argv[0] == "python3" else step.argv[0]


def _capabilities(
    name: str, engine: TensorRTLLMDraft, seen: Mapping[int, SeenGpu]
) -> Iterator[Finding]:
    fp8 = "fp8" in (engine.convert.qformat, engine.convert.kv_cache_dtype)
    needed = FP8_CAPABILITY if fp8 else COMPUTE_CAPABILITY
    what = "FP8" if fp8 else "TensorRT-LLM"
    for number in engine.device_ids:
        given = engine.compute_capability
        found = given if given is not None else _capability(seen.get(number))
        yield Finding(
            f"{name}: GPU {number}",
            "compute capability unknown" if found is None else f"compute capability {found}",
            None if found is None else found >= needed,
            f"say compute_capability, {what} needs {needed}"
            if found is None
            else f"{what} needs {needed} or more; use a newer GPU"
            + (", or leave fp8 out" if fp8 else ""),
        )


def _capability(gpu: SeenGpu | None) -> float | None:
    return gpu.compute_capability if gpu else None


def _memory(gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {gpu.number} memory"
    if gpu.memory is None:
        yield Finding(subject, "unknown", None, "say gpu_memory_gib, or build where the GPU is")
        return
    found = f"{gpu.used:.1f} of {gpu.memory:.1f} GiB"
    mend = "lower max_tokens_in_paged_kv_cache, quantize, or raise tp_size"
    yield Finding(subject, found, gpu.used <= gpu.memory, mend)
    for share in gpu.shares:
        room = gpu.room_for_kv_cache(share)
        yield Finding(
            f"GPU {gpu.number} {share.engine} KV cache",
            f"{share.kv_cache:.1f} GiB wanted, its fraction {share.fraction} gives {room:.1f}",
            share.kv_cache <= room,
            "raise kv_cache_free_gpu_mem_fraction or lower max_tokens_in_paged_kv_cache",
        )
