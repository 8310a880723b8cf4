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
    """One GPU and the engines on it.

    memory: GiB, None if it isn't known. shares: of the engines whose sizes are known. unknown: the
    names of the others.
    """

    number: int
    memory: float | None
    shares: tuple[Share, ...]
    unknown: tuple[str, ...] = ()

    @property
    def used(self) -> float | None:
        """GiB that all engines on it take, None if one of them is of an unknown size."""
        if self.unknown:
            return None
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
    unknown: dict[int, list[str]] = defaultdict(list)
    for name, engine in engines.items():
        shape = read_shape(engine.checkpoint)
        for number in engine.device_ids:
            if shape is None:
                unknown[number].append(name)
            else:
                shares[number].append(_share(name, engine, number, shape))
            if engine.gpu_memory_gib is not None:
                known[number] = engine.gpu_memory_gib
    return [
        Gpu(number, known.get(number), tuple(shares[number]), tuple(unknown[number]))
        for number in sorted({*shares, *unknown})
    ]


def rows(devices: Iterable[Gpu]) -> list[tuple[str, ...]]:
    """Return the table: GPU, engine, weights, KV cache, all, what the GPU has."""
    lines = []
    for gpu in devices:
        for share in gpu.shares:
            sizes = (share.weights, share.kv_cache, share.fixed + share.kv_cache)
            lines.append((str(gpu.number), share.engine, *map(_gib, sizes), ""))
        lines += [(str(gpu.number), name, *3 * ("unknown",), "") for name in gpu.unknown]
        lines.append((str(gpu.number), "all", "", "", _gib(gpu.used), _gib(gpu.memory)))
    return lines


def whole_weights(engine: TensorRTLLMDraft) -> tuple[float, float] | None:
    """Return GiB of all weights over all GPUs: before and after quantizing; None if unknown."""
    shape = read_shape(engine.checkpoint)
    if shape is None:
        return None
    layers, tables = shape.parameters
    wide = (layers + tables) * _wide(engine)
    return wide / GIB, (layers * _narrow(engine) + tables * _wide(engine)) / GIB


def _gib(size: float | None) -> str:
    return "unknown" if size is None else f"{size:.1f}"


def _share(name: str, engine: TensorRTLLMDraft, number: int, shape: ModelShape) -> Share:
    """Return what the fullest of an engine's GPUs holds.

    TensorRT-LLM splits layers over pipeline stages, and the matrices of a layer over the GPUs of a
    stage. A GPU has at least one KV head, so heads are replicated if there are fewer than GPUs.
    """
    layers = -(-shape.layers // engine.pp_size)  # rounded up
    kv_heads = -(-shape.kv_heads // engine.tp_size)
    kv_bytes = BYTES.get(engine.convert.kv_cache_dtype or "", _wide(engine))
    token = 2 * layers * kv_heads * shape.head_size * kv_bytes
    weights = layers * shape.layer_parameters / engine.tp_size * _narrow(engine)
    # The embedding is whole on each GPU of the first stage, as the commands don't ask for
    # --use_parallel_embedding; the output layer is split over those of the last. Only whole tables
    # that are equal are kept once.
    is_one_table = shape.is_tied and engine.tp_size == 1
    output_layer = 0.0 if engine.pp_size > 1 or is_one_table else 1 / engine.tp_size
    tables = (1 + output_layer) * shape.embedding_parameters
    return Share(
        engine=name,
        gpu=number,
        weights=(weights + tables * _wide(engine)) / GIB,
        kv_cache=engine.run.max_tokens_in_paged_kv_cache * token / GIB,
        fraction=engine.run.kv_cache_free_gpu_mem_fraction,
    )


def _narrow(engine: TensorRTLLMDraft) -> float:
    """Bytes of a parameter that is quantized, if any is; embedding and output layer never are."""
    return BYTES.get(engine.convert.qformat or "", _wide(engine))


def _wide(engine: TensorRTLLMDraft) -> float:
    return WIDE_BYTES.get(engine.convert.dtype, 2.0)
