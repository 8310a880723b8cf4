"""A checked profile, and the settings of its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tandem.bls.drafters.registry import BASELINE, DrafterKind, DrafterName
from tandem.bls.settings import (
    MAX_AHEAD_THREADS,
    DrafterModule,
    DraftTokenizer,
    EngineSettings,
    ForwarderSettings,
    LoopSettings,
)
from tandem.engines.llamacpp.settings import GGUF_FILE
from tandem.postprocessing.postprocessor import DetokenizerSettings
from tandem.preprocessing.preprocessor import TokenizerSettings
from tandem.tools.errors import TandemError
from tandem.tools.profiles import checks
from tandem.tools.profiles.checkpoint import TokenizerFolder
from tandem.tools.profiles.engines.base import EnginePlan, KeyPath, ProfileError, locate_errors
from tandem.tools.profiles.engines.llamacpp import LlamaCppTarget
from tandem.tools.profiles.engines.torch import TorchTarget
from tandem.tools.profiles.engines.vllm import VllmDraft, VllmTarget
from tandem.tools.profiles.profile import (
    DRAFT,
    TARGET,
    EntrySection,
    Profile,
    convert_errors,
    read_profile,
)

TOKENIZER = "tokenizer"  # subfolder of a model's version folder
DRAFT_TOKENIZER = "draft_tokenizer"  # a second one if the draft has a different vocabulary
SPARE_THREADS = 32


@dataclass(frozen=True)
class Deployment:
    """A profile that was checked for consistency. Create it with ``load`` or ``check``."""

    profile: Profile
    tokenizer: TokenizerFolder
    end_ids: tuple[int, ...]
    pad_id: int
    target: EnginePlan
    draft: EnginePlan | None
    drafter_kinds: Mapping[DrafterName, DrafterKind]  # the preferred drafter first
    draft_tokenizer: TokenizerFolder | None  # None if the engines share a vocabulary

    @property
    def thread_pool_size(self) -> int:
        """Maximum number of BLS calls that one model can have in flight.

        In the worst case, the loop has one call per running sequence, one per sequence that drafts
        ahead, and one per call that a dead engine never answers. A forwarder has one call per
        running or waiting sequence.

        Don't set a larger number. Triton starts this many threads for every model, and idle threads
        slow down each wake-up in the server (docs/results.md).
        """
        admission = self.profile.admission
        max_in_flight = admission.max_requests + max(admission.max_requests, admission.max_queue)
        ahead = self.profile.decoding.draft_ahead
        if ahead is None:  # auto
            ahead = not _share_device(self.profile)
        can_draft_ahead = self.draft is not None and self.draft.capabilities.branches
        helpers = min(MAX_AHEAD_THREADS, admission.max_requests) if ahead and can_draft_ahead else 0
        return max_in_flight + helpers + SPARE_THREADS

    @property
    def max_text_bytes(self) -> int:
        """Maximum prompt size in bytes.

        A larger prompt can't fit into max_seq_len, even if it consists of the longest tokens.
        """
        fit = self.tokenizer.longest_token_bytes * self.target.max_seq_len
        return min(fit, self.profile.limits.max_text_bytes or fit)

    @property
    def advice(self) -> str | None:
        """What to measure before serving this deployment, in one sentence."""
        engines = self.profile.engines
        if not isinstance(engines.target, VllmTarget) or engines.target.speculative_config:
            return None
        pools = self.profile.decoding.prompt_lookup.max_pool_tokens
        if self.drafters == ("prompt_lookup", BASELINE.name) and not pools:
            return (
                "prompt lookup inside vLLM (speculative_config) is faster with several requests at "
                "once, unless they choose how to draft: docs/deploy/vllm.md"
            )
        in_vllm = isinstance(engines.draft, VllmDraft)
        if not (in_vllm and _share_device(self.profile) and self.draft):
            return None
        if self.draft_tokenizer or self.draft.vocab_size != self.target.vocab_size:
            return None
        return (
            "this draft model and prompt lookup are faster inside vLLM (speculative_config), "
            "unless requests choose how to draft: docs/deploy/vllm.md"
        )

    @property
    def drafters(self) -> tuple[DrafterName, ...]:
        """The drafters of this deployment, preferred drafter first."""
        return tuple(self.drafter_kinds)

    @cached_property
    def stream_entry(self) -> EntrySection:
        return next(entry for entry in self.profile.entries if entry.kind == "stream")

    def tokenizer_settings(self) -> TokenizerSettings:
        return TokenizerSettings(
            tokenizer_dir=TOKENIZER,
            add_special_tokens=self.profile.tokenizer.add_special_tokens,
            vocab_size=self.target.vocab_size,
            end_id=self.end_ids[0],
            pad_id=self.pad_id,
            max_seq_len=self.target.max_seq_len,
            **self._request_limits,
        )

    def detokenizer_settings(self) -> DetokenizerSettings:
        return DetokenizerSettings(
            tokenizer_dir=TOKENIZER,
            skip_special_tokens=self.profile.tokenizer.skip_special_tokens,
            max_seq_len=self.target.max_seq_len,
        )

    def loop_settings(self) -> LoopSettings:
        profile, models, timeouts = self.profile, self.profile.models, self.profile.timeouts
        decoding, lookup, limits = profile.decoding, profile.decoding.prompt_lookup, profile.limits
        draft = self.draft
        return LoopSettings(
            target=_engine_settings(models.target, self.target, timeouts.target),
            draft=_engine_settings(models.draft, draft, timeouts.draft) if draft else None,
            preprocessing_model=models.preprocessing,
            postprocessing_model=models.postprocessing,
            end_ids=self.end_ids,
            engines_share_device=_share_device(profile),
            drafters=self.drafters,
            drafter_modules=tuple(
                DrafterModule(file=own.module.name, settings=own.settings)
                for own in profile.drafters
            ),
            drafter=self.stream_entry.drafter or decoding.drafter or self.drafters[0],
            **decoding.model_dump(exclude={"drafter", "prompt_lookup"}),
            prompt_lookup_num_tokens=lookup.prompt_lookup_num_tokens,
            max_matching_ngram_size=lookup.max_matching_ngram_size,
            hybrid_min_ngram_size=lookup.hybrid_min_ngram_size,
            max_pool_tokens=lookup.max_pool_tokens,
            **profile.admission.model_dump(),
            **self._request_limits,
            max_ngram_size=limits.max_ngram_size,
            max_logits_bytes=limits.max_logits_bytes,
            max_guide_bytes=limits.max_guide_bytes,
            tokenizer_dir=TOKENIZER,
            skip_special_tokens=profile.tokenizer.skip_special_tokens,
            detokenize_in_loop=profile.tokenizer.detokenize_in_loop,
            draft_tokenizer=DraftTokenizer(folder=DRAFT_TOKENIZER, end_ids=draft.end_ids)
            if draft and self.draft_tokenizer
            else None,
            request_timeout=timeouts.request,
            drafter_pause=timeouts.drafter_pause,
        )

    def forwarder_settings(self, entry: EntrySection) -> ForwarderSettings:
        return ForwarderSettings(
            stream_model=self.stream_entry.name,
            drafter=entry.drafter,
            request_timeout=self.profile.timeouts.request,
            **self._request_limits,
        )

    @property
    def _request_limits(self) -> dict[str, Any]:
        limits = self.profile.limits
        return {
            "max_text_bytes": self.max_text_bytes,
            "max_words": limits.max_words,
            "max_words_bytes": limits.max_words_bytes,
        }


def _engine_settings(model: str, plan: EnginePlan, timeout: float) -> EngineSettings:
    """Return an engine's settings for the loop. timeout: maximum seconds per call."""
    facts = {field.name: getattr(plan, field.name) for field in fields(EngineSettings)}
    return EngineSettings(**facts | {"model": model, "timeout": timeout})


def load(path: Path) -> Deployment:
    """Read a profile and check it against its checkpoints.

    Raises TandemError, one line with the file, the key path, the problem and the fix.
    """
    with convert_errors(path):
        return check(read_profile(path))


def for_checkpoints(
    target: Path,
    draft: Path | None,
    *,
    name: str | None = None,
    kv_cache_tokens: Mapping[str, int] = MappingProxyType({}),
    with_weights: bool = True,
) -> Deployment:
    """Return a deployment of checkpoints, without a profile. Raises TandemError.

    name: the deployment's name (default: the name of the target's folder). kv_cache_tokens:
    KV-cache sizes in tokens, by engine (`target`, `draft`). with_weights: False requires only the
    small files, before the weights are downloaded.
    """
    folders = {"target": target, "draft": draft} if draft else {"target": target}
    engines = {
        role: {
            "kind": "llamacpp" if (folder / GGUF_FILE).is_file() else "torch",
            "checkpoint": str(folder.absolute()),
            "kv_cache_tokens": kv_cache_tokens.get(role),
        }
        for role, folder in folders.items()
    }
    # A laptop can take minutes to read a long prompt, all of which is one call.
    timeouts = {"target": LoopSettings.request_timeout}
    profile = Profile.model_validate(
        {"name": name or target.name, "engines": engines, "timeouts": timeouts}
    )
    try:
        return check(profile, with_weights=with_weights)
    except ProfileError as error:
        option = "--draft: " if error.key_path[:2] == DRAFT else "--target: "
        raise TandemError(option + str(error)) from error


def check(profile: Profile, *, with_weights: bool = True) -> Deployment:
    """Return the deployment of a profile; raise ProfileError if it can't be served."""
    plans: dict[KeyPath, EnginePlan] = {}
    for key_path, section in ((TARGET, profile.engines.target), (DRAFT, profile.engines.draft)):
        with locate_errors(*key_path):
            if section:
                plans[key_path] = section.plan()
                if with_weights:
                    section.check_weights()
    checks.check_profile(profile)
    target, draft = plans[TARGET], plans.get(DRAFT)
    tokenizer = checks.target_tokenizer(profile)
    draft_tokenizer = checks.draft_tokenizer(profile, tokenizer)
    checks.check_width(target, profile.engines.target, tokenizer, TARGET)
    if draft and profile.engines.draft:
        checks.check_width(draft, profile.engines.draft, draft_tokenizer or tokenizer, DRAFT)
    if draft and draft_tokenizer:
        draft = checks.plan_translation(draft)
    elif (
        draft
        and draft.vocab_size != target.vocab_size
        and isinstance(profile.engines.target, TorchTarget | LlamaCppTarget | VllmTarget)
    ):  # the same vocabulary with other padding; these engines accept logits of both widths
        width = {"draft_vocab_size": str(draft.vocab_size)}
        target = replace(target, parameters={**target.parameters, **width})
    if target.capabilities.drafts_itself and "entries" not in profile.model_fields_set:
        # A baseline would need a second engine, so omit its entry.
        entries = tuple(entry for entry in profile.entries if entry.drafter != BASELINE.name)
        profile = profile.model_copy(update={"entries": entries})
    target = replace(target, vocabulary=tokenizer.fingerprint)
    if draft:
        draft = replace(draft, vocabulary=(draft_tokenizer or tokenizer).fingerprint)
    own = checks.own_kinds(profile.drafters)
    known = checks.allowed_kinds(target, draft, own)
    checks.check_drafters(profile, known, own)
    checks.check_draft_lengths(profile, known, target)
    checks.check_adapters(target, draft)
    checks.check_draft_ahead(profile, draft)
    end_ids = checks.find_end_ids(profile, target, tokenizer)
    return Deployment(
        profile=profile,
        tokenizer=tokenizer,
        end_ids=end_ids,
        pad_id=checks.find_pad_id(target, tokenizer, default=end_ids[0]),
        target=target,
        draft=draft,
        drafter_kinds=known,
        draft_tokenizer=draft_tokenizer,
    )


def _share_device(profile: Profile) -> bool:
    """Return whether both engines use the same device, and so slow each other down."""
    target, draft = profile.engines.target, profile.engines.draft
    return draft is not None and bool(target.devices & draft.devices)
