"""The section of an emulated engine, which has the timing of a real engine, but no weights.

Every measurement of such an engine is emulated.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from tandem.engines import kinds
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.preprocessing.tokenizer import load_tokenizer, special_token_ids
from tandem.tools.profiles.checkpoint import TokenizerFolder, read_tokenizer
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    EnginePlan,
    EngineSection,
    Folder,
    ProfileError,
    copied_settings,
    locate_errors,
    parameters_of,
)

MAX_SEQ_LEN = 8192
SEQUENCES_CACHED = 64

Probability = Annotated[float, Field(ge=0, le=1)]


class LanguageSection(ConfigSection):
    """The synthetic text, which must be the same for draft and target."""

    alpha: Probability
    """Probability that a draft token is accepted; with `hard_alpha`, only in easy stretches."""
    hard_alpha: Probability | None = None
    """The same probability in hard stretches (default: no hard stretches)."""
    stay_easy: Probability = EmulatedSettings.stay_easy
    """Probability that the token after an easy one is easy."""
    stay_hard: Probability = EmulatedSettings.stay_hard
    """Probability that the token after a hard one is hard."""
    alternatives_exponent: NonNegativeFloat = EmulatedSettings.alternatives_exponent
    """r in 1 - (F + 1)^-r, the probability that the draft's next F guesses have the right token."""
    mean_answer_len: NonNegativeFloat = EmulatedSettings.mean_answer_len
    """Mean number of tokens until the end of sequence; 0: never."""


class EmulatedDraft(EngineSection):
    """An emulated engine."""

    role: ClassVar[Literal["draft", "target"]] = "draft"
    kind: Literal["emulated"]
    tokenizer: Folder
    """Folder of the tokenizer whose tokens it generates."""
    language: LanguageSection
    step_ms: NonNegativeFloat = EmulatedSettings.step_ms
    """Milliseconds per step."""
    prefill_ms_per_token: NonNegativeFloat = EmulatedSettings.prefill_ms_per_token
    """Milliseconds per context token that isn't in the KV cache."""
    batch_slope: NonNegativeFloat = EmulatedSettings.batch_slope
    """Relative slowdown of a step per call after the first one in it."""
    branch_slope: NonNegativeFloat = EmulatedSettings.branch_slope
    """Relative slowdown of a step per additional branch of a call."""
    vocab_size: PositiveInt | None = None
    """Width of the logits (default: the tokenizer's vocabulary)."""
    max_seq_len: PositiveInt = MAX_SEQ_LEN
    """Maximum tokens of prompt, output and draft together."""
    kv_cache_tokens: PositiveInt | None = None
    """Tokens in the KV cache (default: 64 whole sequences)."""
    kv_block_tokens: PositiveInt = EmulatedSettings.kv_block_tokens
    """Tokens in a block of the KV cache."""
    exclude_input_in_output: bool = True

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer

    @property
    def devices(self) -> frozenset[str]:
        """Return a device that no other engine uses."""
        return frozenset({f"emulated {self.role}"})

    def plan(self) -> EnginePlan:
        with locate_errors("tokenizer"):
            tokenizer = read_tokenizer(self.tokenizer)
        settings = self._settings(tokenizer)
        return EnginePlan(
            capabilities=kinds.EMULATED,
            parameters=parameters_of(
                settings, self.kind, excludes_input=self.exclude_input_in_output
            ),
            excludes_input=self.exclude_input_in_output,
            vocab_size=settings.vocab_size,
            max_seq_len=settings.max_seq_len,
            kv_cache_tokens=settings.kv_cache_tokens,
            kv_block_tokens=settings.kv_block_tokens,
            max_draft_len=settings.max_draft_len,
            end_ids=() if settings.end_id is None else (settings.end_id,),
            pad_id=tokenizer.special_id("pad_token"),
            decoupled=self.decoupled,
        )

    def check_target(self, target: EngineSection, *, use_draft_logits: bool) -> None:  # noqa: ARG002
        """Reject another language: the target would accept no draft."""
        if isinstance(target, EmulatedTarget) and target.language != self.language:
            raise ProfileError(("draft", "language"), "must be the same as the target's")

    def _settings(self, tokenizer: TokenizerFolder) -> EmulatedSettings:
        width = self.vocab_size or tokenizer.size
        if width < tokenizer.size:
            raise ProfileError(
                ("vocab_size",),
                f"must be at least {tokenizer.size}, the tokens of {tokenizer.folder}; got {width}",
            )
        low, high = _words(tokenizer)
        return copied_settings(
            self,
            EmulatedSettings,
            role=self.role,
            vocab_size=width,
            low_id=low,
            high_id=high,
            end_id=tokenizer.special_id("eos_token"),
            kv_cache_tokens=self.kv_cache_tokens or SEQUENCES_CACHED * self.max_seq_len,
            **self.language.model_dump(),
        )


class EmulatedTarget(EmulatedDraft):
    """An emulated engine that verifies drafts."""

    role = "target"
    verify_slope: NonNegativeFloat = EmulatedSettings.verify_slope
    """Target only: relative slowdown of a step per draft token that it verifies."""
    max_draft_len: NonNegativeInt = 16
    """Target only: maximum draft tokens per verification."""


def _words(tokenizer: TokenizerFolder) -> tuple[int, int]:
    """Return the longest range of ids that are plain text, as (first, last + 1)."""
    cuts = sorted({-1, tokenizer.size, *special_token_ids(load_tokenizer(tokenizer.folder))})
    runs = ((low + 1, high) for low, high in pairwise(cuts))
    return max(runs, key=lambda run: run[1] - run[0])
