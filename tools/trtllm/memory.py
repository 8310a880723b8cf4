"""Do weights and KV caches fit the GPUs? An estimate, made before any of them is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.trtllm.shape import ModelShape, read_shape

GIB = 2**30
# CUDA context, activations and workspace of one engine on one GPU: a guess, not a measurement
RESERVE_GIB = 2.0
BYTES = {"fp8": 1.0, "int8_sq": 1.0, "int4_awq": 0.5, "w4a8_awq": 0.5, "nvfp4": 0.5, "int8": 1.0}
WIDE_BYTES = {"float32": 4.0}  # every other dtype has two


@dataclass(frozen=True)
class Share:
    """What one engine takes of one GPU, in GiB. fraction: of free memory, for its KV cache."""

    engine: str
    gpu: int
    weights: float
    kv_cache: float
    fraction: float

    @property
    def fixed(self) -> float:
        """What is taken before any KV cache is made."""
        return self.weights + RESERVE_GIB


@dataclass(frozen=True)
class Gpu:
    """One GPU and the engines on it. memory: GiB, None where it is not known."""

    number: int
    memory: float | None
    shares: tuple[Share, ...]

    @property
    def used(self) -> float:
        """GiB that all engines on it take."""
        return sum(share.fixed + share.kv_cache for share in self.shares)

    def room_for_kv_cache(self, share: Share) -> float:
        """GiB that an engine's fraction comes to if it is the last to take its KV cache."""
        others = sum(s.fixed + s.kv_cache for s in self.shares if s is not share)
        return share.fraction * max((self.memory or 0.0) - others - share.fixed, 0.0)


def gpus(
    engines: Mapping[str, TensorRTLLMDraft], memory: Mapping[int, float] | None = None
) -> list[Gpu]:
    """Return every GPU of a node that an engine uses; what a profile says goes before `memory`."""
    known = dict(memory or {})
    shares: dict[int, list[Share]] = defaultdict(list)
    for name, engine in engines.items():
        for number in engine.device_ids:
            shares[number].append(_share(name, engine, number))
            if engine.gpu_memory_gib is not None:
                known[number] = engine.gpu_memory_gib
    return [Gpu(number, known.get(number), tuple(shares[number])) for number in sorted(shares)]


def rows(devices: Iterable[Gpu]) -> list[tuple[str, ...]]:
    """Return the table: GPU, engine, weights, KV cache, all, what the GPU has."""
    lines = []
    for gpu in devices:
        for share in gpu.shares:
            sizes = (share.weights, share.kv_cache, share.fixed + share.kv_cache)
            lines.append((str(gpu.number), share.engine, *map(_gib, sizes), ""))
        has = "unknown" if gpu.memory is None else _gib(gpu.memory)
        lines.append((str(gpu.number), "all", "", "", _gib(gpu.used), has))
    return lines


def whole_weights(engine: TensorRTLLMDraft) -> tuple[float, float]:
    """Return GiB of all weights over all GPUs: before and after quantizing."""
    shape = read_shape(engine.checkpoint)
    wide = (shape.linear_parameters + shape.embedding_parameters) * _wide(engine)
    return wide / GIB, _weights(shape, engine) / GIB


def _gib(size: float) -> str:
    return f"{size:.1f}"


def _share(name: str, engine: TensorRTLLMDraft, number: int) -> Share:
    shape = read_shape(engine.checkpoint)
    kv_bytes = BYTES.get(engine.convert.kv_cache_dtype or "", _wide(engine))
    kv_cache = engine.run.max_tokens_in_paged_kv_cache * shape.kv_values * kv_bytes
    return Share(
        engine=name,
        gpu=number,
        weights=_weights(shape, engine) / engine.world_size / GIB,
        kv_cache=kv_cache / engine.world_size / GIB,
        fraction=engine.run.kv_cache_free_gpu_mem_fraction,
    )


def _weights(shape: ModelShape, engine: TensorRTLLMDraft) -> float:
    """Bytes of all weights; quantization leaves the embeddings alone."""
    narrow = BYTES.get(engine.convert.qformat or "", _wide(engine))
    return shape.linear_parameters * narrow + shape.embedding_parameters * _wide(engine)


def _wide(engine: TensorRTLLMDraft) -> float:
    return WIDE_BYTES.get(engine.convert.dtype, 2.0)
