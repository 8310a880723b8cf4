"""The section of a Hugging Face checkpoint on the torch engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tandem.contract.engine import Capabilities
from tandem.engines import kinds
from tandem.engines.checkpoint_files import kv_bytes_per_token
from tandem.engines.torch.settings import LAYER_TYPES, TorchSettings
from tandem.tools.profiles.checkpoint import (
    Checkpoint,
    checkpoint_files,
    read_checkpoint_config,
    require_weights,
)
from tandem.tools.profiles.engines.base import (
    SEQUENCES_CACHED,
    CheckpointSection,
    EnginePlan,
    Folder,
    ProfileError,
    copied_settings,
    locate_errors,
)

CHECKPOINT = "checkpoint"  # folder next to model.py
KV_BYTES = 2**30  # default size of the KV cache, unless one whole sequence needs more
CAUSAL = ("ForCausalLM", "LMHeadModel")  # suffixes of transformers' decoder classes
RECURRENT = {"mamba", "mamba2", "falcon_mamba", "rwkv"}


class TorchDraft(CheckpointSection):
    """A torch engine, which runs a Hugging Face checkpoint on PyTorch."""

    default_max_seq_len = 4096

    kind: Literal["torch"] = "torch"
    checkpoint: Folder
    """Folder of the Hugging Face checkpoint."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = TorchSettings.device
    """`cpu`, `cuda` or `cuda:N`; `auto`: the first GPU, or the CPU without one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = TorchSettings.dtype
    """`float32`, `bfloat16` or `float16`; `auto`: float32 on a CPU, the checkpoint's type on a GPU.
    """
    threads: NonNegativeInt = TorchSettings.threads
    """Number of PyTorch threads; 0: PyTorch's default."""
    max_seq_len: PositiveInt | None = None
    """Tokens of prompt, output and longest draft together (default: the checkpoint's maximum, up to
    4096)."""
    kv_cache_tokens: PositiveInt | None = None
    """Tokens in the KV cache (default: 16 whole sequences or 1 GiB, at least one sequence)."""
    kv_block_tokens: PositiveInt = TorchSettings.kv_block_tokens
    """Tokens in a block of the KV cache."""
    max_batch_tokens: PositiveInt = TorchSettings.max_batch_tokens
    """Tokens in one forward pass."""
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = TorchSettings.gpu_memory_fraction
    """Maximum share of a GPU's memory in use after loading, including other processes."""

    @property
    def devices(self) -> frozenset[str]:
        """The devices that the engine may use. `device: auto` selects the CPU or the first GPU."""
        either = {"auto": {"cpu", "cuda:0"}, "cuda": {"cuda:0"}}
        return frozenset(either.get(self.device, {self.device}))

    def capabilities_of(self, settings: TorchSettings) -> Capabilities:  # noqa: ARG002
        return kinds.TORCH

    def default_kv_cache(self, max_seq_len: int) -> int:
        config = read_checkpoint_config(self.checkpoint)
        affordable = KV_BYTES // max(kv_bytes_per_token(config.get, item_bytes=4), 1)  # float32
        return max(max_seq_len, min(SEQUENCES_CACHED * max_seq_len, affordable))

    def plan(self) -> EnginePlan:
        with locate_errors("checkpoint"):
            fault = _why_unsupported(read_checkpoint_config(self.checkpoint))
        if fault:
            raise ProfileError(("checkpoint",), f"{self.checkpoint}: {fault}")
        planned = super().plan()
        return replace(
            planned, files={CHECKPOINT: checkpoint_files(self.checkpoint), **planned.files}
        )

    def check_weights(self) -> None:
        with locate_errors("checkpoint"):
            require_weights(self.checkpoint)

    def settings(self, _: Checkpoint, /, **decided: Any) -> TorchSettings:
        return copied_settings(self, TorchSettings, checkpoint=CHECKPOINT, **decided)


class TorchTarget(TorchDraft):
    """A torch engine that verifies drafts."""

    max_draft_len: NonNegativeInt = 16
    """Target only: maximum draft tokens per verification."""


def _why_unsupported(config: Mapping[str, Any]) -> str | None:
    """Return why the engine can't serve a checkpoint, or None if it may work.

    config: the checkpoint's config.json. This check saves downloading and loading the weights of an
    architecture that is known not to work. The engine decides when it loads them: it checks the
    layers' attention, and compares its logits with transformers'.
    """
    kind = str(config.get("model_type"))
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or (
        names and not any(name.endswith(CAUSAL) for name in names)
    ):
        name = names[0] if names else kind
        return f"architecture '{name}' isn't a decoder-only language model (...ForCausalLM)"
    if kind in RECURRENT:
        return f"architecture '{kind}' isn't supported: it has no attention KV cache"
    others = sorted({str(layer) for layer in config.get("layer_types") or ()} - LAYER_TYPES)
    if others:
        return f"architecture '{kind}' isn't supported: it has layers of type '{others[0]}'"
    return None
