"""An engine without weights that keeps a real one's timing: every measurement of it is emulated."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from tokenizers import Tokenizer

from tandem.engines import capabilities
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.tools.profiles.checkpoint import TokenizerFolder, read_tokenizer
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    EnginePlan,
    Folder,
    KeyPath,
    OwnEngineSection,
    ProfileError,
    located,
)

MAX_SEQ_LEN = 8192
SEQUENCES_CACHED = 64

Probability = Annotated[float, Field(ge=0, le=1)]


class LanguageSection(ConfigSection):
    """The emulated text; draft and target must have the same one.

    alpha: how probable it is that a draft's best guess is right. With hard_alpha that of the easy
    stretches of a text that has hard ones too; stay_easy and stay_hard: how probable the next token
    is to be of the same kind. alternatives_exponent: r; if that guess is wrong, the right token
    is among the draft's next F with probability 1 - (F + 1)^-r. mean_answer_len: tokens until the
    end of sequence; 0: it never comes.
    """

    alpha: Probability
    hard_alpha: Probability | None = None
    stay_easy: Probability = EmulatedSettings.stay_easy
    stay_hard: Probability = EmulatedSettings.stay_hard
    alternatives_exponent: NonNegativeFloat = EmulatedSettings.alternatives_exponent
    mean_answer_len: NonNegativeFloat = EmulatedSettings.mean_answer_len


class EmulatedDraft(OwnEngineSection):
    """An emulated engine.

    tokenizer: folder of the tokenizer whose ids it says. vocab_size: width of its logits (default:
    the tokenizer's). step_ms: one new token. prefill_ms_per_token: for each token of a
    context that is not in its KV cache. batch_slope: each other call under way makes a step longer
    by this part; branch_slope: each branch but its call's first does, by that part. same_gpu: draft
    and target, if both say so, slow each other down.
    kv_cache_tokens: 64 whole sequences by default.
    """

    kind: Literal["emulated"]
    tokenizer: Folder
    language: LanguageSection
    step_ms: NonNegativeFloat = EmulatedSettings.step_ms
    prefill_ms_per_token: NonNegativeFloat = EmulatedSettings.prefill_ms_per_token
    batch_slope: NonNegativeFloat = EmulatedSettings.batch_slope
    branch_slope: NonNegativeFloat = EmulatedSettings.branch_slope
    same_gpu: bool = EmulatedSettings.same_gpu
    vocab_size: PositiveInt | None = None
    max_seq_len: PositiveInt = MAX_SEQ_LEN
    kv_cache_tokens: PositiveInt | None = None
    kv_block_tokens: PositiveInt = EmulatedSettings.kv_block_tokens

    @property
    def tokenizer_folder(self) -> Path:
        return self.tokenizer

    @property
    def devices(self) -> frozenset[str]:
        """One of its own, unless it says that it has the other engine's."""
        return frozenset({"same_gpu" if self.same_gpu else f"emulated {self._role}"})

    def plan(self, key_path: KeyPath) -> EnginePlan:
        with located(*key_path, "tokenizer"):
            tokenizer = read_tokenizer(self.tokenizer)
        settings = self._settings(tokenizer, key_path)
        return self.plan_of(
            self.kind,
            settings,
            capabilities=capabilities.EMULATED,
            vocab_size=settings.vocab_size,
            max_draft_len=settings.max_draft_len,
            end_ids=() if settings.end_id is None else (settings.end_id,),
            pad_id=tokenizer.special_id("pad_token"),
        )

    @property
    def _role(self) -> Literal["draft", "target"]:
        return "draft"

    def _settings(self, tokenizer: TokenizerFolder, key_path: KeyPath) -> EmulatedSettings:
        width = self.vocab_size or tokenizer.size
        if width < tokenizer.size:
            raise ProfileError(
                (*key_path, "vocab_size"),
                f"{width} is less than the {tokenizer.size} tokens of {tokenizer.folder}",
            )
        low, high = _words(tokenizer)
        given = self.model_dump(
            exclude={*OwnEngineSection.model_fields, "kind", "tokenizer", "language"}
        )
        filled = {
            "vocab_size": width,
            "kv_cache_tokens": self.kv_cache_tokens or SEQUENCES_CACHED * self.max_seq_len,
        }
        with located(*key_path):
            return EmulatedSettings(
                role=self._role,
                low_id=low,
                high_id=high,
                end_id=tokenizer.special_id("eos_token"),
                **self.language.model_dump(),
                **(given | filled),
            )


class EmulatedTarget(EmulatedDraft):
    """One that verifies drafts, of up to max_draft_len tokens.

    verify_slope: a draft of k tokens makes its step 1 + verify_slope * k times as long.
    """

    verify_slope: NonNegativeFloat = EmulatedSettings.verify_slope
    max_draft_len: NonNegativeInt = 16

    @property
    def _role(self) -> Literal["draft", "target"]:
        return "target"


def _words(tokenizer: TokenizerFolder) -> tuple[int, int]:
    """Return the longest run of ids, from the first to before the last, that are plain text."""
    path = tokenizer.folder / "tokenizer.json"
    added = Tokenizer.from_file(str(path)).get_added_tokens_decoder()
    special = (number for number, token in added.items() if token.special)
    cuts = sorted({-1, tokenizer.size, *special})
    runs = ((low + 1, high) for low, high in pairwise(cuts))
    return max(runs, key=lambda run: run[1] - run[0])
