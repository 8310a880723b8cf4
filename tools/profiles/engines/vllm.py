"""The section of a Hugging Face checkpoint on vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, NonNegativeInt, PositiveInt, ValidationInfo

from tandem.contract.engine import Capabilities
from tandem.engines import kinds
from tandem.engines.vllm.lora import max_rank
from tandem.engines.vllm.settings import VllmSettings
from tandem.tools.profiles.checkpoint import Checkpoint
from tandem.tools.profiles.engines.base import (
    CheckpointSection,
    EngineSection,
    ProfileError,
    as_tuple,
    copied_settings,
    resolve,
)


def _executable(value: Any, info: ValidationInfo) -> Any:
    """Resolve a path relative to the profile's folder; a command without a slash is unchanged."""
    return str(resolve(value, info)) if isinstance(value, str) and "/" in value else value


class VllmDraft(CheckpointSection):
    """An engine in its own vLLM process.

    checkpoint: the Hugging Face folder; rendering reads its tokenizer and sizes. model: what vLLM
    loads, a path on the serving machine or a Hub name (default: the checkpoint's path). python: the
    Python that has vLLM, a path or a command on the serving machine. device_ids: the GPUs to use
    (default: the first ones). max_seq_len: tokens of prompt and output together (default: the
    checkpoint's maximum, up to 8192). kv_cache_tokens: tokens in the KV cache (default: 16 whole
    sequences). gpu_memory_fraction: share of the GPU's memory that the engine uses, including
    weights; the shares of two engines on one GPU must not exceed 1. arguments: more of vLLM's
    engine arguments.
    """

    kind: Literal["vllm"]
    model: str | None = None
    python: Annotated[str, BeforeValidator(_executable)] = VllmSettings.python
    device_ids: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(as_tuple)] = ()
    tensor_parallel_size: PositiveInt = VllmSettings.tensor_parallel_size
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = VllmSettings.dtype
    max_batch_size: PositiveInt = VllmSettings.max_batch_size
    max_batch_tokens: PositiveInt = VllmSettings.max_batch_tokens
    kv_block_tokens: Literal[16, 32, 64, 128] = 32
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = VllmSettings.gpu_memory_fraction
    enforce_eager: bool = VllmSettings.enforce_eager
    trust_remote_code: bool = VllmSettings.trust_remote_code
    threads: NonNegativeInt = VllmSettings.threads
    arguments: Mapping[str, JsonValue] | None = None

    @property
    def devices(self) -> frozenset[str]:
        used = self.device_ids or range(self.tensor_parallel_size)
        on_gpu = {f"cuda:{index}" for index in used}
        return frozenset(on_gpu if self.device_ids else on_gpu | {"cpu"})

    def capabilities_of(self, settings: VllmSettings) -> Capabilities:
        return kinds.VLLM_SPECULATIVE if settings.drafts_itself else kinds.VLLM

    def check_adapter(self, folder: Path) -> None:
        max_rank(folder)

    def check_target(self, target: EngineSection, *, use_draft_logits: bool) -> None:  # noqa: ARG002
        """Reject two engines that together request more than the memory of a GPU."""
        if not (isinstance(target, VllmDraft) and target.devices & self.devices):
            return
        total = round(target.gpu_memory_fraction + self.gpu_memory_fraction, 6)
        if total > 1:
            raise ProfileError(
                ("draft", "gpu_memory_fraction"),
                f"with engines.target's, must be at most 1 on a shared GPU; got {total:g}; set "
                "both, for example 0.8 and 0.15",
            )

    def settings(self, checkpoint: Checkpoint, /, **decided: Any) -> VllmSettings:
        used = self.tensor_parallel_size
        for name in ("pipeline_parallel_size", "data_parallel_size"):
            size = (self.arguments or {}).get(name, 1)
            used *= size if isinstance(size, int) else 1
        if self.device_ids and len(self.device_ids) != used:
            raise ProfileError(
                ("device_ids",),
                f"must list as many GPUs as vLLM uses, {used}; got {len(self.device_ids)}; set "
                "tensor_parallel_size to use several",
            )
        return copied_settings(
            self,
            VllmSettings,
            model=self.model or str(self.checkpoint),
            vocab_size=checkpoint.vocab_size,
            **decided,
        )


class VllmTarget(VllmDraft):
    """A vLLM engine that verifies drafts of up to max_draft_len tokens, or drafts by itself.

    speculative_config: vLLM's setting. prompt_lookup_num_tokens: 16 adds copies of up to 16 tokens,
    and {method: prompt_lookup, num_speculative_tokens: 16} drafts nothing else. If it is set, it
    applies to all requests, and the engine verifies no other drafts.
    """

    max_draft_len: NonNegativeInt = 16
    speculative_config: Mapping[str, JsonValue] | None = None
