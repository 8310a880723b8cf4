"""A Hugging Face checkpoint on TensorRT-LLM's PyTorch workflow, by its Python interface (V2)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from tandem.engines import capabilities
from tandem.engines.llmapi.settings import LlmApiSettings
from tandem.tools.profiles.checkpoint import (
    Checkpoint,
    has_tokenizer,
    read_checkpoint,
    read_tokenizer,
)
from tandem.tools.profiles.engines.base import (
    ConfigSection,
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

MAX_SEQ_LEN = 8192
# Fields that need more than a copy into the settings.
DECIDED = (
    *("kind", "checkpoint", "model", "max_seq_len", "kv_cache_tokens"),
    *("prompt_lookup", "draft"),
)
SEQUENCES_CACHED = 16  # default of the KV cache


class InLlmLookupSection(LookupSection):
    """`NGramDecodingConfig` (see `LookupSection`).

    is_public_pool: one pool for all requests. It finds more, and what one user's text held shows
    in another's timing.
    """

    is_public_pool: bool = False


class InLlmDraftSection(ConfigSection):
    """`DraftTargetDecodingConfig`: a draft model inside the engine.

    checkpoint, model: as the target's. draft_len: tokens that it drafts a step.
    """

    checkpoint: Folder
    model: str | None = None
    draft_len: PositiveInt = 4


class LlmApiTarget(OwnEngineSection):
    """A `tensorrt_llm.LLM`.

    checkpoint: the Hugging Face folder; rendering reads its tokenizer and sizes. model: what the
    LLM loads: a path on Triton's machine, or a name on the Hub (default: the checkpoint's path).
    max_seq_len: tokens of context, answer and draft together (default: what the checkpoint allows,
    at most 8192). kv_cache_tokens: size of the KV cache, on which admission relies (default: 16
    whole sequences); the cache is smaller if free_gpu_memory_fraction allows less.

    At most one of prompt_lookup and draft makes it speculate. All its requests then do, in the same
    way; its control is a second deployment with neither.
    """

    kind: Literal["llmapi"]
    checkpoint: Folder
    model: str | None = None
    tensor_parallel_size: PositiveInt = LlmApiSettings.tensor_parallel_size
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = LlmApiSettings.dtype
    max_seq_len: PositiveInt | None = None
    max_batch_size: PositiveInt | None = None
    max_num_tokens: PositiveInt = LlmApiSettings.max_num_tokens
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: Literal[16, 32, 64, 128] = 32
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = (
        LlmApiSettings.free_gpu_memory_fraction
    )
    enable_block_reuse: bool = LlmApiSettings.enable_block_reuse
    trust_remote_code: bool = LlmApiSettings.trust_remote_code
    prompt_lookup: InLlmLookupSection | None = None
    draft: InLlmDraftSection | None = None

    @property
    def tokenizer_folder(self) -> Folder:
        return self.checkpoint

    @property
    def devices(self) -> frozenset[str]:
        """None that are shared with a draft engine: it drafts by itself."""
        return frozenset()

    def plan(self, key_path: KeyPath) -> EnginePlan:
        if self.prompt_lookup and self.draft:
            raise ProfileError(
                (*key_path, "draft"),
                "given together with prompt_lookup; an LLM drafts in one way: drop one",
            )
        with located(*key_path, "checkpoint"):
            checkpoint = read_checkpoint(self.checkpoint, with_weights=False)
        if self.draft:
            _check_vocabulary(
                self.checkpoint, self.draft.checkpoint, (*key_path, "draft", "checkpoint")
            )
        settings = self._settings(checkpoint, key_path)
        return self.plan_of(
            self.kind,
            settings,
            capabilities=capabilities.LLMAPI_SPECULATIVE
            if settings.drafts_itself
            else capabilities.LLMAPI,
            vocab_size=checkpoint.vocab_size,
            end_ids=checkpoint.end_ids,
            pad_id=checkpoint.pad_id,
        )

    @property
    def _longest_draft(self) -> int:
        if self.prompt_lookup:
            return self.prompt_lookup.prompt_lookup_num_tokens
        return self.draft.draft_len if self.draft else 0

    def _settings(self, checkpoint: Checkpoint, key_path: KeyPath) -> LlmApiSettings:
        length = sequence_length(self.max_seq_len, checkpoint, key_path, most=MAX_SEQ_LEN)
        if self._longest_draft >= length - 1:
            raise ProfileError(
                (*key_path, "max_seq_len"),
                f"{length} leaves no room for text with drafts of {self._longest_draft}",
            )
        cache = self.kv_cache_tokens or SEQUENCES_CACHED * length
        check_kv_cache(cache, length, *key_path, "kv_cache_tokens")
        return LlmApiSettings(
            model=self.model or str(self.checkpoint),
            vocab_size=checkpoint.vocab_size,
            max_seq_len=length - self._longest_draft,
            kv_cache_tokens=cache,
            **self.model_dump(exclude={*OwnEngineSection.model_fields, *DECIDED}),
            **self._speculation(),
        )

    def _speculation(self) -> dict[str, Any]:
        if self.draft:
            model = self.draft.model or str(self.draft.checkpoint)
            return {"draft_len": self.draft.draft_len, "draft_model": model}
        if not self.prompt_lookup:
            return {}
        return {
            **self.prompt_lookup.settings,
            "lookup_is_public": self.prompt_lookup.is_public_pool,
        }


def _check_vocabulary(target: Folder, draft: Folder, key_path: KeyPath) -> None:
    """Refuse a draft model whose token ids stand for other tokens."""
    with located(*key_path):
        read_checkpoint(draft, with_weights=False)
        if not (has_tokenizer(target) and has_tokenizer(draft)):
            return
        if read_tokenizer(target).ids != read_tokenizer(draft).ids:
            raise ProfileError(
                key_path, f"{draft} has another vocabulary than {target}; they must share one"
            )
