"""The profile section for a checkpoint that TensorRT-LLM's PyTorch workflow runs.

Tandem uses TensorRT-LLM's Python API (V2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, PositiveInt

from tandem.contract.engine import Capabilities
from tandem.engines import kinds
from tandem.engines.checkpoint_files import uniform_rank
from tandem.engines.llmapi.settings import LlmApiSettings
from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import (
    Checkpoint,
    has_tokenizer,
    read_checkpoint,
    read_tokenizer,
)
from tandem.tools.profiles.engines.base import (
    CheckpointSection,
    ConfigSection,
    EnginePlan,
    Folder,
    LookupSection,
    ProfileError,
    copied_settings,
    locate_errors,
)


class InLlmLookupSection(LookupSection):
    """Prompt lookup inside the engine: TensorRT-LLM's `NGramDecodingConfig`."""

    is_public_pool: bool = False
    """Use one pool for all requests. It finds more matches but leaks text through timing."""


class InLlmDraftSection(ConfigSection):
    """A draft model inside the engine: TensorRT-LLM's `DraftTargetDecodingConfig`."""

    checkpoint: Folder
    """Hugging Face folder of the draft model."""
    model: str | None = None
    """Path or Hub name that TensorRT-LLM loads instead of `checkpoint`."""
    draft_len: PositiveInt = 4
    """Draft tokens per step."""


class LlmApiTarget(CheckpointSection):
    """A target that runs as a `tensorrt_llm.LLM`.

    The engine speculates if one of prompt_lookup, draft and speculative_config is set; at most one
    can be. The setting applies to all requests, so the baseline is a second deployment without it.
    """

    kind: Literal["llmapi"]
    checkpoint: Folder
    """Hugging Face folder; rendering reads its tokenizer and sizes."""
    model: str | None = None
    """Path on the serving machine or Hub name that TensorRT-LLM loads (default: the checkpoint's
    path)."""
    tensor_parallel_size: PositiveInt = LlmApiSettings.tensor_parallel_size
    """GPUs for tensor parallelism."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = LlmApiSettings.dtype
    """Type of the weights."""
    max_seq_len: PositiveInt | None = None
    """Tokens of prompt, output and draft together (default: the checkpoint's maximum, up to 8192).
    """
    max_batch_size: PositiveInt | None = None
    """Sequences in one step (default: TensorRT-LLM's)."""
    max_num_tokens: PositiveInt = LlmApiSettings.max_num_tokens
    """Tokens in one step."""
    kv_cache_tokens: PositiveInt | None = None
    """Tokens in the KV cache; fewer if `free_gpu_memory_fraction` doesn't allow them (default: 16
    whole sequences)."""
    kv_block_tokens: Literal[16, 32, 64, 128] = 32
    """Tokens in a block of the KV cache."""
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = (
        LlmApiSettings.free_gpu_memory_fraction
    )
    """Share of free GPU memory for the KV cache."""
    enable_block_reuse: bool = LlmApiSettings.enable_block_reuse
    """Reuse KV blocks between requests."""
    trust_remote_code: bool = LlmApiSettings.trust_remote_code
    """Run code from the checkpoint."""
    prompt_lookup: InLlmLookupSection | None = None
    """Prompt lookup inside the engine (default: none)."""
    draft: InLlmDraftSection | None = None
    """A draft model inside the engine (default: none)."""
    speculative_config: Mapping[str, JsonValue] | None = None
    """TensorRT-LLM's setting, with decoding_type and max_draft_len (default: none)."""
    llm_args: Mapping[str, JsonValue] | None = None
    """More arguments of TensorRT-LLM's LLM() (default: none)."""

    @property
    def devices(self) -> frozenset[str]:
        """Empty, because there is no draft engine with which the target could share a device."""
        return frozenset()

    def plan(self) -> EnginePlan:
        ways = [
            name
            for name in ("prompt_lookup", "draft", "speculative_config")
            if getattr(self, name) is not None
        ]
        if len(ways) > 1:
            raise ProfileError((ways[1],), f"set {ways[0]} or {ways[1]}, not both")
        if self.draft:
            with locate_errors("draft", "checkpoint"):
                _check_vocabulary(self.checkpoint, self.draft.checkpoint)
        return super().plan()

    def capabilities_of(self, settings: LlmApiSettings) -> Capabilities:
        return kinds.LLMAPI_SPECULATIVE if settings.drafts_itself else kinds.LLMAPI

    def check_adapter(self, folder: Path) -> None:
        uniform_rank(folder, "TensorRT-LLM")

    def settings(self, checkpoint: Checkpoint, /, **decided: Any) -> LlmApiSettings:
        settings = copied_settings(
            self,
            LlmApiSettings,
            model=self.model or str(self.checkpoint),
            vocab_size=checkpoint.vocab_size,
            speculative_config=self._speculation(),
            **decided,
        )
        max_seq_len: int = decided["max_seq_len"]
        if settings.longest_draft >= max_seq_len - 1:
            raise ProfileError(
                ("max_seq_len",),
                f"must be more than the longest draft, {settings.longest_draft} tokens; "
                f"got {max_seq_len}",
            )
        return replace(settings, max_seq_len=max_seq_len - settings.longest_draft)

    def _speculation(self) -> Mapping[str, Any] | None:
        """Return TensorRT-LLM's `speculative_config`, converted from `draft` or `prompt_lookup`."""
        if self.draft:
            return {
                "decoding_type": "Draft_Target",
                "max_draft_len": self.draft.draft_len,
                "speculative_model": self.draft.model or str(self.draft.checkpoint),
            }
        if self.prompt_lookup:
            return {
                "decoding_type": "NGram",
                "max_draft_len": self.prompt_lookup.prompt_lookup_num_tokens,
                "is_use_oldest": False,  # the newest occurrence, as in Tandem's own prompt lookup
                **self.prompt_lookup.model_dump(exclude={"prompt_lookup_num_tokens"}),
            }
        return self.speculative_config


def _check_vocabulary(target: Path, draft: Path) -> None:
    """Raise TandemError if the draft model's token ids stand for other tokens."""
    read_checkpoint(draft)
    if not (has_tokenizer(target) and has_tokenizer(draft)):
        return
    if read_tokenizer(target).ids != read_tokenizer(draft).ids:
        raise TandemError(f"{draft} must have the same vocabulary as {target}")
