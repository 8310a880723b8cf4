"""What must hold before a GPU hour is spent, beyond what reading the profile has checked."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.tools.findings import Finding
from tandem.tools.profiles.checkpoint import has_weights
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.trtllm.memory import Gpu, gpus, whole_weights
from tandem.tools.trtllm.shape import read_model_type, read_shape
from tandem.tools.trtllm.steps import UNSEEN, BuildStep

COMPUTE_CAPABILITY = 8.0  # Ampere, says TensorRT-LLM's support matrix
FP8_CAPABILITY = 8.9  # Ada has the first FP8 tensor cores


@dataclass(frozen=True)
class SeenGpu:
    """What nvidia-smi says of one GPU."""

    memory_gib: float
    compute_capability: float


def seen_gpus() -> dict[int, SeenGpu]:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {}
    query = ("--query-gpu=index,memory.total,compute_cap", "--format=csv,noheader,nounits")
    listed = subprocess.run([smi, *query], capture_output=True, text=True, check=False)
    rows = [] if listed.returncode else [line.split(",") for line in listed.stdout.splitlines()]
    return {
        int(index): SeenGpu(float(mebibytes) / 1024, float(capability))
        for index, mebibytes, capability in rows
    }


def examine_checkpoints(engines: Mapping[str, TensorRTLLMDraft]) -> Iterator[Finding]:
    """Name the checkpoints that are not here: what they would show is not checked."""
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
        if read_shape(engine.checkpoint) is None:
            yield Finding(
                f"{name}: size",
                f"unknown for model_type '{read_model_type(engine.checkpoint)}' as its config.json "
                "describes it",
                None,
                "check yourself that weights and KV cache fit",
            )
    for gpu in memory_of(engines, seen):
        yield from _memory(gpu)


def examine_steps(engines: Mapping[str, TensorRTLLMDraft], max_requests: int) -> Iterator[Finding]:
    """Say when a target drops draft tokens, which it does silently.

    Each round is a new request to the engine. Where those that start in one step do not fit
    max_num_tokens, context and draft together, its scheduler cuts their contexts into chunks, and
    keeps of a draft only what the last block of its context has room for. Without chunked context
    a request that does not fit waits instead.
    """
    for name, engine in engines.items():
        if not (engine.max_draft_len and engine.run.enable_chunked_context):
            continue
        room = engine.build.max_num_tokens // max_requests
        yield Finding(
            f"{name}: one step",
            f"max_num_tokens {engine.build.max_num_tokens} leaves {room} tokens for each of "
            f"{max_requests} requests",
            # It depends on the contexts, unless no draft or every one fits.
            False if room <= engine.max_draft_len else room >= engine.build.max_seq_len or None,
            f"contexts that are longer with their {engine.max_draft_len} draft tokens lose some of "
            "these in silence where all come in one step; raise max_num_tokens or lower "
            "admission.max_requests",
        )


def examine_quantizing(
    engines: Mapping[str, TensorRTLLMDraft], seen: Mapping[int, SeenGpu], host_gib: float | None
) -> Iterator[Finding]:
    """Check the memory that quantize.py needs.

    It loads the whole model unquantized over all GPUs it sees, holds the quantized weights as well
    before it writes them, and leaves in host memory what the GPUs have no room for. host_gib: what
    of it is free, None where the build runs elsewhere.
    """
    for name, engine in engines.items():
        if engine.convert.qformat is None:
            continue
        weights = whole_weights(engine)
        if weights is None:
            found, fix = "memory unknown", "quantize.py holds all weights twice; check it yourself"
            yield Finding(f"{name}: quantizing", found, None, fix)
            continue
        wide, narrow = weights
        in_profile = (engine.gpu_memory_gib or 0.0) * len(engine.device_ids)
        on_gpus = sum(gpu.memory_gib for gpu in seen.values()) or in_profile
        left = max(wide + narrow - on_gpus, 0.0)
        has = "unknown" if host_gib is None else f"{host_gib:.0f}"
        found = (
            f"{wide:.0f} GiB unquantized and {narrow:.0f} GiB {engine.convert.qformat} weights; "
            f"GPUs hold {on_gpus:.0f}, host memory must hold {left:.0f} ({has} free)"
        )
        fits = True if not left else None if host_gib is None else left <= host_gib
        fix = "quantize.py needs that much, and is slow with weights off the GPUs; use more GPUs"
        yield Finding(f"{name}: quantizing", found, fits, fix)


def examine_tools(
    engines: Mapping[str, TensorRTLLMDraft],
    steps: tuple[BuildStep, ...],
    seen: Mapping[int, SeenGpu],
) -> Iterator[Finding]:
    """Check what building needs on this machine: weights, NVIDIA's tools, GPUs."""
    for name, engine in engines.items():
        found, fix = str(engine.checkpoint), "fetch its *.safetensors (git lfs pull)"
        yield Finding(f"{name}: weights", found, has_weights(engine.checkpoint), fix)
        workers = engine.build.workers or 1
        fix = f"trtllm-build wants {workers} to build at once; lower workers"
        yield Finding(f"{name}: GPUs", f"{len(seen)} here", len(seen) >= workers, fix)
    tools = {step.argv[step.argv[0] == "python3"] for step in steps}
    for tool in sorted(tools):
        there = Path(tool).is_file() or shutil.which(tool) is not None
        fix = "run in NVIDIA's image (docs/tensorrt-llm.md), or say --examples DIR"
        yield Finding("tool", tool, there, fix)


def memory_of(engines: Mapping[str, TensorRTLLMDraft], seen: Mapping[int, SeenGpu]) -> list[Gpu]:
    return gpus(engines, {number: gpu.memory_gib for number, gpu in seen.items()})


def _capabilities(
    name: str, engine: TensorRTLLMDraft, seen: Mapping[int, SeenGpu]
) -> Iterator[Finding]:
    fp8 = "fp8" in (engine.convert.qformat, engine.convert.kv_cache_dtype)
    needed = FP8_CAPABILITY if fp8 else COMPUTE_CAPABILITY
    what = "FP8" if fp8 else "TensorRT-LLM"
    for number in engine.device_ids:
        found = engine.compute_capability
        if found is None and number in seen:
            found = seen[number].compute_capability
        yield Finding(
            f"{name}: GPU {number}",
            "compute capability unknown" if found is None else f"compute capability {found}",
            None if found is None else found >= needed,
            f"say compute_capability, {what} needs {needed}"
            if found is None
            else f"{what} needs {needed} or more; use a newer GPU"
            + (", or leave fp8 out" if fp8 else ""),
        )


def _memory(gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {gpu.number} memory"
    if gpu.used is None:
        yield Finding(subject, "use unknown", None, f"see the size of {', '.join(gpu.unknown)}")
        return
    if gpu.memory is None:
        yield Finding(subject, "unknown", None, "say gpu_memory_gib, or build where the GPU is")
        return
    found = f"{gpu.used:.1f} of {gpu.memory:.1f} GiB"
    fix = "lower max_tokens_in_paged_kv_cache, quantize, or raise tp_size"
    yield Finding(subject, found, gpu.used <= gpu.memory, fix)
    for share in gpu.shares:
        room = gpu.room_for_kv_cache(share)
        yield Finding(
            f"GPU {gpu.number} {share.engine} KV cache",
            f"{share.kv_cache:.1f} GiB wanted, its fraction {share.fraction} gives {room:.1f}",
            share.kv_cache <= room,
            "raise kv_cache_free_gpu_mem_fraction or lower max_tokens_in_paged_kv_cache",
        )
