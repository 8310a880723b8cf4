"""A Hugging Face checkpoint on PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tandem.engines import capabilities
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.profiles.checkpoint import (
    Checkpoint,
    checkpoint_files,
    read_checkpoint,
    read_config,
    require_weights,
)
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    Folder,
    KeyPath,
    OwnEngineSection,
    ProfileError,
    check_kv_cache,
    located,
    sequence_length,
)
from tandem.tools.profiles.engines.lookup import LookupSection

CHECKPOINT = "checkpoint"  # folder of the model's version
SEQUENCES_CACHED = 16  # default of the KV cache, if memory allows
KV_BYTES = 2**30
MAX_SEQ_LEN = 4096
CAUSAL = ("ForCausalLM", "LMHeadModel")  # how transformers' classes for decoders end
ATTENTION = {"full_attention", "sliding_attention"}
RECURRENT = {"mamba", "mamba2", "falcon_mamba", "rwkv"}


class TorchDraft(OwnEngineSection):
    """A Hugging Face checkpoint on PyTorch.

    checkpoint: its folder. max_seq_len: tokens of context, answer and draft together (default: what
    the checkpoint allows, at most 4096). kv_cache_tokens: size of the KV cache (default: 16 whole
    sequences or what a gigabyte holds). max_batch_tokens: tokens in one forward pass. threads: of
    PyTorch; 0 is its own choice.
    """

    kind: Literal["torch"] = "torch"
    checkpoint: Folder
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = TorchSettings.device
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = TorchSettings.dtype
    threads: NonNegativeInt = TorchSettings.threads
    max_seq_len: PositiveInt | None = None
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: PositiveInt = TorchSettings.kv_block_tokens
    max_batch_tokens: PositiveInt = TorchSettings.max_batch_tokens
    paged_kv_cache: bool = TorchSettings.paged_kv_cache
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = TorchSettings.gpu_memory_fraction

    @property
    def tokenizer_folder(self) -> Path:
        return self.checkpoint

    @property
    def devices(self) -> frozenset[str]:
        """The CPU or a GPU; `auto` may be the CPU or the first GPU."""
        either = {"auto": {"cpu", "cuda:0"}, "cuda": {"cuda:0"}}
        return frozenset(either.get(self.device, {self.device}))

    def plan(self, key_path: KeyPath) -> EnginePlan:
        with located(*key_path, "checkpoint"):
            checkpoint = read_checkpoint(self.checkpoint, with_weights=False)
            fault = _why_unsupported(read_config(self.checkpoint))
        if fault:
            raise ProfileError((*key_path, "checkpoint"), f"{self.checkpoint}: {fault}")
        settings = self._settings(checkpoint, key_path)
        return self.plan_of(
            self.kind,
            settings,
            capabilities=capabilities.TORCH_LOOKUP
            if settings.drafts_itself
            else capabilities.TORCH,
            vocab_size=checkpoint.vocab_size,
            max_draft_len=0 if settings.drafts_itself else settings.max_draft_len,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
            files={CHECKPOINT: checkpoint_files(checkpoint.folder)},
        )

    def check_weights(self, key_path: KeyPath) -> None:
        with located(*key_path, "checkpoint"):
            require_weights(self.checkpoint)

    @property
    def _longest_draft(self) -> int:
        return 0

    @property
    def _lookup(self) -> dict[str, Any]:
        return {}

    def _settings(self, checkpoint: Checkpoint, key_path: KeyPath) -> TorchSettings:
        length = sequence_length(self.max_seq_len, checkpoint, key_path, most=MAX_SEQ_LEN)
        if self._longest_draft >= length - 1:
            raise ProfileError(
                (*key_path, "max_draft_len"),
                f"{self._longest_draft} leaves no room for text in max_seq_len {length}",
            )
        affordable = KV_BYTES // max(checkpoint.kv_bytes_per_token, 1)
        default = max(length, min(SEQUENCES_CACHED * length, affordable))
        cache = self.kv_cache_tokens or default
        check_kv_cache(cache, length, *key_path, "kv_cache_tokens")
        decided = {
            "kind",
            *OwnEngineSection.model_fields,
            "checkpoint",
            "max_seq_len",
            "kv_cache_tokens",
            "prompt_lookup",
        }
        given = {**self.model_dump(exclude=decided), **self._lookup}
        with located(*key_path):
            return TorchSettings(
                checkpoint=CHECKPOINT, max_seq_len=length, kv_cache_tokens=cache, **given
            )


class TorchTarget(TorchDraft):
    """One that verifies drafts, of up to max_draft_len tokens.

    prompt_lookup: it makes them itself, inside one call (V2), and takes no others.
    """

    max_draft_len: NonNegativeInt = 16
    prompt_lookup: LookupSection | None = None

    def adjusted_to_draft(self, draft: EnginePlan, planned: EnginePlan) -> EnginePlan:
        """Give the engine the width of the draft's logits if their padding differs."""
        if draft.vocab_size == planned.vocab_size:
            return planned
        width = {"draft_vocab_size": str(draft.vocab_size)}
        return replace(planned, parameters={**planned.parameters, **width})

    @property
    def _longest_draft(self) -> int:
        return self.max_draft_len

    @property
    def _lookup(self) -> dict[str, Any]:
        return self.prompt_lookup.settings if self.prompt_lookup else {}


def _why_unsupported(config: Mapping[str, Any]) -> str | None:
    """Return why the engine can't serve a checkpoint, by its config.json.

    The engine checks its logits against transformers after it has loaded the weights. This check
    comes before the load or the download.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    if config.get("is_encoder_decoder") or (
        names and not any(name.endswith(CAUSAL) for name in names)
    ):
        kind = names[0] if names else config.get("model_type", "an encoder-decoder")
        return f"architecture '{kind}' is not a decoder-only language model (...ForCausalLM)"
    kind = str(config.get("model_type"))
    if kind in RECURRENT:
        return f"architecture '{kind}' has no attention, whose keys and values could be reused"
    others = sorted(set(config.get("layer_types") or ()) - ATTENTION)
    if others:
        return f"architecture '{kind}' has layers of type '{others[0]}', which are not supported"
    return None
