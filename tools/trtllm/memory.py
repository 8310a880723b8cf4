"""Estimates whether weights and KV caches fit into the GPUs, before any engine is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandem.tools.errors import TandemError
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.trtllm.shape import ModelShape, read_shape

GIB = 2**30
# A guess, not a measurement: CUDA context, activations and workspace of one engine on one GPU
RESERVE_GIB = 2.0
BYTES = {"fp8": 1.0, "int8_sq": 1.0, "int4_awq": 0.5, "w4a8_awq": 0.5, "nvfp4": 0.5, "int8": 1.0}
WIDE_BYTES = {"float32": 4.0}  # every other dtype has 2 bytes


@dataclass(frozen=True)
class Share:
    """GiB that one engine uses on one GPU. fraction: share of free memory for its KV cache."""

    engine: str
    weights: float
    kv_cache: float
    fraction: float

    @property
    def total(self) -> float:
        return self.weights + self.kv_cache + RESERVE_GIB


def check_memory(engines: Mapping[str, TensorRTLLMDraft]) -> Iterator[str]:
    """Yield one line per GPU of a node; raise TandemError if the engines don't fit into a GPU."""
    read = {name: read_shape(engine.checkpoint) for name, engine in engines.items()}
    shapes = {name: shape for name, shape in read.items() if shape}
    if unknown := sorted(read.keys() - shapes.keys()):
        yield f"can't check memory: the size of {', '.join(unknown)} is unknown"
        return
    for number in sorted({number for engine in engines.values() for number in engine.device_ids}):
        here = {name: engine for name, engine in engines.items() if number in engine.device_ids}
        shares = [share_of(name, engine, shapes[name]) for name, engine in here.items()]
        memory = next((e.gpu_memory_gib for e in reversed(here.values()) if e.gpu_memory_gib), None)
        used = sum(share.total for share in shares)
        parts = "; ".join(
            f"{share.engine}: {share.weights:.1f} of weights, {share.kv_cache:.1f} of KV cache"
            for share in shares
        )
        if memory is None:
            yield f"GPU {number}: needs {used:.1f} GiB ({parts}); set gpu_memory_gib to check it"
            continue
        if used > memory:
            raise TandemError(
                f"GPU {number} has {memory:.1f} GiB but needs {used:.1f} ({parts}); lower "
                "max_tokens_in_paged_kv_cache, quantize, or raise tp_size"
            )
        for share in shares:
            # Assume the worst case, in which this engine allocates its KV cache last.
            room = share.fraction * (memory - used + share.kv_cache)
            if share.kv_cache > room:
                raise TandemError(
                    f"GPU {number}: the KV cache of {share.engine} needs {share.kv_cache:.1f} "
                    f"GiB, but its fraction {share.fraction} leaves {room:.1f}; raise "
                    "kv_cache_free_gpu_mem_fraction or lower max_tokens_in_paged_kv_cache"
                )
        yield f"GPU {number}: {used:.1f} of {memory:.1f} GiB ({parts})"


def share_of(name: str, engine: TensorRTLLMDraft, shape: ModelShape) -> Share:
    """Return the memory that an engine uses on its fullest GPU."""
    wide = WIDE_BYTES.get(engine.convert.dtype, 2.0)
    narrow = BYTES.get(engine.convert.qformat or "", wide)  # except embedding and output layer
    layers = -(-shape.layers // engine.pp_size)  # rounded up
    kv_heads = -(-shape.kv_heads // engine.tp_size)
    kv_bytes = BYTES.get(engine.convert.kv_cache_dtype or "", wide)
    token = 2 * layers * kv_heads * shape.head_size * kv_bytes
    weights = layers * shape.layer_parameters / engine.tp_size * narrow
    # Each GPU of the first stage has the whole embedding, because the commands don't set
    # --use_parallel_embedding. The output layer is split over the GPUs of the last stage. Embedding
    # and output layer share memory only if they are tied and neither is split.
    is_one_table = shape.is_tied and engine.tp_size == 1
    output_layer = 0.0 if engine.pp_size > 1 or is_one_table else 1 / engine.tp_size
    tables = (1 + output_layer) * shape.embedding_parameters
    return Share(
        engine=name,
        weights=(weights + tables * wide) / GIB,
        kv_cache=engine.run.max_tokens_in_paged_kv_cache * token / GIB,
        fraction=engine.run.kv_cache_free_gpu_mem_fraction,
    )
