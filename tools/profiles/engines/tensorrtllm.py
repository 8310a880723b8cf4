"""The section of a TensorRT engine on NVIDIA's `tensorrtllm` backend: how to build and run it.

Settings have NVIDIA's names: the flags of quantize.py, convert_checkpoint.py and trtllm-build,
and the parameters of the Triton model `tensorrt_llm`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from tandem.bls.settings import LogitsType
from tandem.contract.engine import LORA_FILES
from tandem.engines import kinds
from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_checkpoint
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    EnginePlan,
    EngineSection,
    Folder,
    LoraAdapters,
    ProfileError,
    as_tuple,
    check_kv_cache,
    locate_errors,
)

# trtllm-build's name of a type -> Triton's name
LOGITS_DTYPES: dict[str, LogitsType] = {"float32": "FP32", "float16": "FP16"}


Ids = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(as_tuple)]
Plugin = Literal["auto", "float16", "bfloat16", "float32", "disable"]


class ConvertSection(ConfigSection):
    """How to convert the Hugging Face checkpoint into a TensorRT-LLM checkpoint."""

    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Type of weights that aren't quantized."""
    qformat: Literal["fp8", "int8_sq", "int4_awq", "w4a8_awq", "nvfp4"] | None = None
    """Quantize to this format with `quantize.py` (default: convert with `convert_checkpoint.py`).
    """
    kv_cache_dtype: Literal["fp8", "int8"] | None = None
    """Type of the KV cache; needs `qformat` (default: `dtype`)."""
    calib_size: PositiveInt = 512
    """Calibration samples."""
    calib_dataset: str | None = None
    """Calibration data set: a name or a local folder (default: NVIDIA's)."""


class BuildSection(ConfigSection):
    """Flags of trtllm-build. A flag that is None isn't passed, so NVIDIA's default applies."""

    max_batch_size: PositiveInt
    """Sequences in one step."""
    max_seq_len: PositiveInt
    """Tokens of prompt, output and longest draft together."""
    max_input_len: PositiveInt | None = None
    max_num_tokens: PositiveInt = 8192
    """Tokens in one step."""
    gpt_attention_plugin: Plugin | None = None
    gemm_plugin: Plugin | Literal["fp8", "nvfp4"] | None = None
    low_latency_gemm_plugin: Literal["fp8", "disable"] | None = None
    use_paged_context_fmha: bool = True
    """Must be true, for KV-block reuse."""
    use_fused_mlp: bool | None = None
    multiple_profiles: bool | None = None
    reduce_fusion: bool | None = None
    tokens_per_block: Literal[16, 32, 64, 128] = 32
    """Tokens in a block of the KV cache."""
    logits_dtype: Literal["float32", "float16"] = "float32"
    """Type of the logits."""
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    """The draft needs it for `use_draft_logits`."""
    workers: PositiveInt | None = None
    """Number of GPUs that build in parallel."""


class TargetBuildSection(BuildSection):
    """Flags of trtllm-build for an engine that verifies drafts."""

    speculative_decoding_mode: Literal["draft_tokens_external"] | None = "draft_tokens_external"
    """Target only: how the engine verifies drafts."""
    max_draft_len: NonNegativeInt = 10
    """Target only: maximum draft tokens per verification."""
    lora_plugin: Plugin | None = None
    lora_target_modules: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] | None = None
    max_lora_rank: PositiveInt | None = None

    @property
    def applies_adapters(self) -> bool:
        return self.lora_plugin not in {None, "disable"}


class RunSection(ConfigSection):
    """Parameters of the Triton model.

    The size of the KV cache is the lesser of max_tokens_in_paged_kv_cache and the tokens that fit
    into kv_cache_free_gpu_mem_fraction.
    """

    max_tokens_in_paged_kv_cache: PositiveInt
    """Tokens in the KV cache. Tandem admits requests up to this number."""
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Maximum share of free GPU memory for the KV cache."""
    enable_kv_cache_reuse: bool = True
    """Must be true."""
    enable_chunked_context: bool = True
    gpt_model_type: Literal["inflight_fused_batching", "inflight_batching"] = (
        "inflight_fused_batching"
    )
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = (
        "guaranteed_no_evict"
    )
    exclude_input_in_output: bool = True
    """Omit the input from the output in direct calls to the engine."""


class TensorRTLLMDraft(EngineSection):
    """A Hugging Face checkpoint that is built into a TensorRT engine.

    Rendering needs the tokenizer and the sizes, and `tandem build` needs the weights. Without a
    checkpoint, the engine's folder provides the sizes. len(device_ids) * num_nodes must equal
    tp_size * pp_size.
    """

    kind: Literal["tensorrtllm"]
    checkpoint: Folder
    """Hugging Face folder."""
    engine_dir: Folder
    """Folder of the built engine; must be the same on the serving machine."""
    tp_size: PositiveInt = 1
    """Tensor parallelism, over all nodes."""
    pp_size: PositiveInt = 1
    """Pipeline parallelism."""
    num_nodes: PositiveInt = 1
    """Nodes that the engine spans."""
    device_ids: Ids = (0,)
    """GPUs of one node."""
    convert: ConvertSection = ConvertSection()
    build: BuildSection
    run: RunSection

    @property
    def tokenizer_folder(self) -> Folder:
        return self.checkpoint

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def max_draft_len(self) -> int:
        return 0

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(f"cuda:{number}" for number in self.device_ids)

    def plan(self) -> EnginePlan:
        with locate_errors("checkpoint"):
            checkpoint = read_checkpoint(self.checkpoint)
        self.check_settings()
        return EnginePlan(
            capabilities=kinds.TENSORRTLLM,
            backend="tensorrtllm",
            parameters=self._parameters(),
            vocab_size=self.padded_vocab_size(checkpoint.vocab_size),
            max_seq_len=self.build.max_seq_len,
            kv_cache_tokens=self.run.max_tokens_in_paged_kv_cache,
            kv_block_tokens=self.build.tokens_per_block,
            max_draft_len=self.max_draft_len,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
            excludes_input=self.run.exclude_input_in_output,
            logits_dtype=LOGITS_DTYPES[self.build.logits_dtype],
            decoupled=self.decoupled,
        )

    def check_settings(self) -> None:
        """Check the settings without the checkpoint. Raises ProfileError."""
        if self.convert.kv_cache_dtype and not self.convert.qformat:
            raise ProfileError(
                ("convert", "kv_cache_dtype"),
                f"'{self.convert.kv_cache_dtype}' needs the calibration of qformat; set qformat or "
                "remove kv_cache_dtype",
            )
        given = len(self.device_ids)
        if len(set(self.device_ids)) != given:
            raise ProfileError(("device_ids",), "must list each GPU once")
        if given * self.num_nodes != self.world_size:
            wanted = self.world_size // self.num_nodes
            right = (
                f"use {list(self.device_ids[:wanted])}"
                if 0 < wanted < given
                else f"list {wanted} of them, or change tp_size"
            )
            raise ProfileError(
                ("device_ids",),
                f"must list tp_size {self.tp_size} * pp_size {self.pp_size} / num_nodes "
                f"{self.num_nodes} GPUs; got {given}; {right}",
            )
        run, build = self.run, self.build
        if not build.use_paged_context_fmha:
            raise ProfileError(
                ("build", "use_paged_context_fmha"),
                "must be true, because KV-block reuse needs it",
            )
        if not run.enable_kv_cache_reuse:
            raise ProfileError(
                ("run", "enable_kv_cache_reuse"),
                "must be true; otherwise every round recomputes the whole context",
            )
        cache = "max_tokens_in_paged_kv_cache"
        check_kv_cache(getattr(run, cache), build.max_seq_len, "run", cache)
        if not run.enable_chunked_context and build.max_num_tokens < build.max_seq_len - 1:
            raise ProfileError(
                ("run", "enable_chunked_context"),
                f"must be true if max_num_tokens {build.max_num_tokens} is less than the longest "
                f"context, {build.max_seq_len - 1} tokens",
            )

    def check_target(self, target: EngineSection, *, use_draft_logits: bool) -> None:
        if use_draft_logits and not self.build.gather_generation_logits:
            raise ProfileError(
                ("draft", "build", "gather_generation_logits"),
                "must be true, because decoding.use_draft_logits needs the draft's logits",
            )
        if not isinstance(target, TensorRTLLMTarget):
            return
        # Two engines need orchestrator mode, which spawns all workers on one node. In leader mode
        # each engine takes every rank, and ranks above 0 never return from the first engine's
        # constructor.
        for role, engine in (("target", target), ("draft", self)):
            if engine.num_nodes > 1:
                raise ProfileError(
                    (role, "num_nodes"),
                    "must be 1 in both engines, because several nodes need leader mode, which "
                    f"loads one engine; got {engine.num_nodes}; set 1, or use prompt_lookup "
                    "without engines.draft",
                )
        if self.engine_dir == target.engine_dir:
            raise ProfileError(("draft", "engine_dir"), "must be different from the target's")

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the width of the logits: vocab_size rounded up to a multiple of tp_size."""
        return -(-vocab_size // self.tp_size) * self.tp_size

    def _parameters(self) -> dict[str, str]:
        """Return the parameters of the Triton model. The backend requires the three empty ones."""
        return {
            "gpt_model_path": str(self.engine_dir),
            "max_beam_width": "1",
            "gpu_device_ids": _text(self.device_ids),
            "num_nodes": str(self.num_nodes),
            **{name: _text(value) for name, value in self.run},
            "guided_decoding_backend": "",
            "tokenizer_dir": "",
            "xgrammar_tokenizer_info_path": "",
        }


class TensorRTLLMTarget(TensorRTLLMDraft):
    """A TensorRT engine that verifies drafts."""

    build: TargetBuildSection
    lora_adapters: LoraAdapters | None = None
    """LoRA adapters: the name of each, and the folder that NVIDIA's hf_lora_convert.py wrote
    (default: none)."""

    @property
    def max_draft_len(self) -> int:
        return self.build.max_draft_len

    def plan(self) -> EnginePlan:
        adapters, files = self.lora_adapters or {}, {}
        for number, (name, folder) in enumerate(adapters.items(), 1):
            with locate_errors("lora_adapters", name):
                _check_adapter(folder)
            files[f"lora-{number}"] = [folder / file for file in LORA_FILES.values()]
        # An engine without the plugin ignores adapters. If the profile has adapters, their numbers
        # would be ids that clients could use, too.
        return replace(
            super().plan(),
            lora_adapters=tuple(adapters),
            client_adapters=self.build.applies_adapters and not adapters,
            loop_files=files,
        )

    def check_settings(self) -> None:
        super().check_settings()
        build = self.build
        if self.lora_adapters and not build.applies_adapters:
            raise ProfileError(
                ("build", "lora_plugin"),
                "must be set to a type, such as auto, because lora_adapters is set",
            )
        if build.max_draft_len and not build.speculative_decoding_mode:
            raise ProfileError(
                ("build", "speculative_decoding_mode"),
                "must be draft_tokens_external if max_draft_len is set; it is "
                f"{build.max_draft_len}",
            )
        if build.speculative_decoding_mode and not build.max_draft_len:
            raise ProfileError(
                ("build", "max_draft_len"),
                "must be at least 1 if speculative_decoding_mode is draft_tokens_external; got 0",
            )
        if build.max_draft_len >= build.max_seq_len - 1:
            raise ProfileError(
                ("build", "max_draft_len"),
                f"must be less than max_seq_len {build.max_seq_len}; got {build.max_draft_len}",
            )


def _check_adapter(folder: Path) -> None:
    """Raise TandemError if the files in a folder aren't a converted LoRA adapter."""
    for tensor, file in LORA_FILES.items():
        try:
            array = np.load(folder / file, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise TandemError(f"can't read {folder / file}: {error}") from error
        dtype = {"FP16": "float16", "INT32": "int32"}[tensor.dtype]
        if array.ndim != 3 or len(array) != 1 or array.dtype != dtype:
            raise TandemError(
                f"{folder / file} must have shape [1, n, m] and type {dtype}; got "
                f"{list(array.shape)} and {array.dtype}; convert with --storage-type float16"
            )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
