"""A profile that was checked against its checkpoints: what each model of it will be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tandem.bls.settings import DrafterName, ForwarderSettings, LoopSettings
from tandem.contract.strings import MOST_STRINGS
from tandem.postprocessing.settings import DetokenizerSettings
from tandem.preprocessing.settings import TokenizerSettings
from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import (
    CheckpointError,
    TokenizerFolder,
    has_tokenizer,
    read_tokenizer,
)
from tandem.tools.profiles.engines.base import EnginePlan, EngineSection, KeyPath, ProfileError
from tandem.tools.profiles.engines.emulated import EmulatedDraft, EmulatedTarget
from tandem.tools.profiles.pair import check_pair
from tandem.tools.profiles.profile import EntrySection, Profile, read_profile

TOKENIZER = "tokenizer"  # folder beside model.py
SPARE_THREADS = 32
TARGET: KeyPath = ("engines", "target")
DRAFT: KeyPath = ("engines", "draft")


@dataclass(frozen=True)
class Deployment:
    """A profile whose parts fit together; made by ``load`` or ``check``."""

    profile: Profile
    tokenizer: TokenizerFolder
    end_ids: tuple[int, ...]
    pad_id: int
    target: EnginePlan
    draft: EnginePlan | None

    @property
    def thread_pool_size(self) -> int:
        """BLS calls that one model can have in flight at once.

        The loop's worst case is a call for each running sequence beside one for each that a dead
        engine never answers; a forwarder's is one for each sequence that runs or waits. No more
        than that: every model gets so many threads, and idle ones make each wake-up in the server
        dearer (docs/benchmarks.md).
        """
        admission = self.profile.admission
        most = admission.max_requests + max(admission.max_requests, admission.max_queue)
        return most + SPARE_THREADS

    @property
    def max_text_bytes(self) -> int:
        """The longest prompt; a longer one cannot fit, were each token the longest there is."""
        fit = self.tokenizer.longest_token_bytes * self.target.max_seq_len
        return min(fit, self.profile.limits.max_text_bytes or fit)

    @property
    def drafters(self) -> tuple[DrafterName, ...]:
        """What can draft here, best first."""
        return _drafters(self.target, self.draft)

    @cached_property
    def stream_entry(self) -> EntrySection:
        """The entry that holds the loop."""
        return next(entry for entry in self.profile.entries if entry.kind == "stream")

    def tokenizer_settings(self) -> TokenizerSettings:
        """Return what `preprocessing` is told."""
        return TokenizerSettings(
            tokenizer_dir=TOKENIZER,
            add_special_tokens=self.profile.tokenizer.add_special_tokens,
            vocab_size=self.target.vocab_size,
            end_id=self.end_ids[0],
            pad_id=self.pad_id,
            max_seq_len=self.target.max_seq_len,
            max_text_bytes=self.max_text_bytes,
            max_words=self.profile.limits.max_words,
            max_words_bytes=self.profile.limits.max_words_bytes,
        )

    def detokenizer_settings(self) -> DetokenizerSettings:
        """Return what `postprocessing` is told."""
        return DetokenizerSettings(
            tokenizer_dir=TOKENIZER,
            skip_special_tokens=self.profile.tokenizer.skip_special_tokens,
            max_seq_len=self.target.max_seq_len,
        )

    def loop_settings(self) -> LoopSettings:
        """Return what the stream entry is told."""
        profile, target, draft = self.profile, self.target, self.draft
        engines = [engine for engine in (target, draft) if engine]
        decoding = profile.decoding
        lookup = decoding.prompt_lookup
        return LoopSettings(
            target_model=profile.models.target,
            draft_model=profile.models.draft if draft else None,
            preprocessing_model=profile.models.preprocessing,
            postprocessing_model=profile.models.postprocessing,
            vocab_size=target.vocab_size,
            draft_vocab_size=draft.vocab_size if draft else 0,
            draft_max_seq_len=draft.max_seq_len if draft else 0,
            end_ids=self.end_ids,
            max_seq_len=target.max_seq_len,
            max_draft_len=target.max_draft_len,
            target_keyed_randomness=target.capabilities.keyed_randomness,
            draft_keyed_randomness=draft is not None and draft.capabilities.keyed_randomness,
            draft_stops_when_unsure=draft is not None and draft.capabilities.stops_when_unsure,
            target_decoupled=target.decoupled,
            draft_decoupled=draft is not None and draft.decoupled,
            target_excludes_input=target.excludes_input,
            draft_excludes_input=draft is None or draft.excludes_input,
            target_log_probs_with_drafts=target.capabilities.log_probs_with_drafts,
            target_top_log_probs=target.capabilities.top_log_probs,
            target_prompt_log_probs=target.capabilities.prompt_log_probs,
            target_warps_draft_logits=target.capabilities.warps_draft_logits,
            target_compares_ids_exactly=target.capabilities.compares_ids_exactly,
            target_top_p_with_drafts=target.capabilities.top_p_with_drafts,
            target_logits_dtype=target.logits_dtype,
            draft_logits_tell_all=draft is None or draft.capabilities.logits_tell_all,
            fast_logits=target.fast_logits,
            logits_on_loan=draft is not None and all(e.capabilities.shares_logits for e in engines),
            drafters=self.drafters,
            drafter=self.stream_entry.drafter or decoding.drafter or self.drafters[0],
            draft_len=decoding.draft_len,
            use_draft_logits=decoding.use_draft_logits,
            draft_acceptance_threshold=decoding.draft_acceptance_threshold,
            exclude_input_in_output=decoding.exclude_input_in_output,
            prompt_lookup_num_tokens=lookup.prompt_lookup_num_tokens,
            max_matching_ngram_size=lookup.max_matching_ngram_size,
            lookup_keeps_all=lookup.is_keep_all,
            lookup_uses_oldest=lookup.is_use_oldest,
            hybrid_min_ngram_size=lookup.hybrid_min_ngram_size,
            kv_tokens=target.kv_cache_tokens,
            kv_block_tokens=target.kv_block_tokens,
            draft_kv_tokens=draft.kv_cache_tokens if draft else 0,
            draft_kv_block_tokens=(draft or target).kv_block_tokens,
            max_requests=profile.admission.max_requests,
            max_queue=profile.admission.max_queue,
            max_queue_bytes=profile.admission.max_queue_bytes,
            max_text_bytes=self.max_text_bytes,
            max_words=profile.limits.max_words,
            max_words_bytes=profile.limits.max_words_bytes,
            max_ngram_size=profile.limits.max_ngram_size,
            max_logits_bytes=profile.limits.max_logits_bytes,
            target_timeout=profile.timeouts.target,
            draft_timeout=profile.timeouts.draft,
            request_timeout=profile.timeouts.request,
            drafter_pause=profile.timeouts.drafter_pause,
        )

    def forwarder_settings(self, entry: EntrySection) -> ForwarderSettings:
        """Return what a forward entry is told."""
        return ForwarderSettings(
            stream_model=self.stream_entry.name,
            drafter=entry.drafter,
            request_timeout=self.profile.timeouts.request,
            max_text_bytes=self.max_text_bytes,
            max_words=self.profile.limits.max_words,
            max_words_bytes=self.profile.limits.max_words_bytes,
        )


def load(path: Path) -> Deployment:
    """Read a profile and check it against its checkpoints.

    Raises TandemError: one line with the file, the key path in it, what is wrong and what is right.
    """
    profile, source = read_profile(path)
    try:
        return check(profile)
    except ProfileError as error:
        raise source.error(error.key_path, str(error)) from error


def for_checkpoints(target: Path, draft: Path | None) -> Deployment:
    """Return a deployment of one's own checkpoints, without a profile; raise TandemError."""
    engines = {"target": {"kind": "torch", "checkpoint": str(target.absolute())}}
    if draft:
        engines["draft"] = {"kind": "torch", "checkpoint": str(draft.absolute())}
    profile = Profile.model_validate({"name": target.name, "engines": engines})
    try:
        return check(profile)
    except ProfileError as error:
        option = "--draft: " if error.key_path[:2] == DRAFT else "--target: "
        raise TandemError(option + str(error)) from error


def check(profile: Profile) -> Deployment:
    """Return the deployment of a profile; raise ProfileError where its parts do not fit."""
    _check_names(profile)
    engines = {key_path: section.plan(key_path) for key_path, section in _sections(profile)}
    _check_languages(profile)
    target, draft = engines[TARGET], engines.get(DRAFT)
    if draft:
        target = profile.engines.target.adjusted_to_draft(draft, target)
    if target.capabilities.drafts_itself and "entries" not in profile.model_fields_set:
        # Its control would be a second engine, so there is no entry for it.
        entries = tuple(entry for entry in profile.entries if entry.drafter != "none")
        profile = profile.model_copy(update={"entries": entries})
    check_pair(
        profile.engines.target,
        profile.engines.draft,
        use_draft_logits=profile.decoding.use_draft_logits,
    )
    _check_drafters(profile, target, draft)
    _check_draft_lengths(profile, target, draft)
    _check_limits(profile)
    tokenizer = _tokenizer(profile)
    for key_path, section in _sections(profile):
        _check_width(engines[key_path], section, tokenizer, key_path)
    end_ids = _end_ids(profile, target, tokenizer)
    return Deployment(
        profile=profile,
        tokenizer=tokenizer,
        end_ids=end_ids,
        pad_id=_pad_id(target, tokenizer, default=end_ids[0]),
        target=target,
        draft=draft,
    )


def _check_names(profile: Profile) -> None:
    """Refuse two models of one name, and anything but one stream entry."""
    models = profile.models.model_dump()
    if profile.engines.draft is None:
        del models["draft"]
    key_paths: dict[KeyPath, str] = {("models", job): name for job, name in models.items()}
    key_paths |= {("entries", i, "name"): entry.name for i, entry in enumerate(profile.entries)}
    for name, times in Counter(key_paths.values()).items():
        if times > 1:
            key_path = [p for p, used in key_paths.items() if used == name][-1]
            raise ProfileError(key_path, f"a second model named '{name}'; give each its own name")
    streams = sum(entry.kind == "stream" for entry in profile.entries)
    if streams != 1:
        raise ProfileError(
            ("entries",), f"{streams} entries of kind 'stream'; one must hold the loop"
        )


def _drafters(target: EnginePlan, draft: EnginePlan | None) -> tuple[DrafterName, ...]:
    if target.capabilities.drafts_itself:
        return ("engine",)
    if not target.capabilities.verifies_drafts or not target.max_draft_len:
        return ("none",)
    return (
        ("draft_model", "prompt_lookup", "hybrid", "none") if draft else ("prompt_lookup", "none")
    )


def _check_languages(profile: Profile) -> None:
    """Refuse emulated engines that emulate two texts: no draft would ever be right."""
    target, draft = profile.engines.target, profile.engines.draft
    if not (isinstance(target, EmulatedTarget) and isinstance(draft, EmulatedDraft)):
        return
    if target.language != draft.language:
        raise ProfileError((*DRAFT, "language"), "differs from the target's; give both the same")


def _check_drafters(profile: Profile, target: EnginePlan, draft: EnginePlan | None) -> None:
    """Refuse a default drafter that the engines do not allow."""
    known = _drafters(target, draft)
    drafters: dict[KeyPath, str | None] = {("decoding", "drafter"): profile.decoding.drafter}
    for index, entry in enumerate(profile.entries):
        drafters[("entries", index, "drafter")] = entry.drafter
    for key_path, drafter in drafters.items():
        if drafter is None or drafter in known:
            continue
        if drafter in ("draft_model", "hybrid") and draft is None:
            raise ProfileError(
                key_path, f"'{drafter}' needs engines.draft, which is missing; add it or say 'none'"
            )
        raise ProfileError(key_path, f"'{drafter}' given, these engines allow {', '.join(known)}")


def _check_draft_lengths(profile: Profile, target: EnginePlan, draft: EnginePlan | None) -> None:
    """Refuse default drafts that the target won't verify."""
    decoding, known = profile.decoding, _drafters(target, draft)
    lengths: dict[KeyPath, tuple[str, int]] = {
        ("decoding", "draft_len"): ("draft_model", decoding.draft_len),
        ("decoding", "prompt_lookup", "prompt_lookup_num_tokens"): (
            "prompt_lookup",
            decoding.prompt_lookup.prompt_lookup_num_tokens,
        ),
    }
    for key_path, (drafter, length) in lengths.items():
        if drafter in known and length > target.max_draft_len:
            raise ProfileError(
                key_path,
                f"{length} is over engines.target.max_draft_len, which is "
                f"{target.max_draft_len}; lower the one or raise the other",
            )


def _check_limits(profile: Profile) -> None:
    """Refuse limits beyond what is read at all, and a default that they forbid."""
    limits, lookup = profile.limits, profile.decoding.prompt_lookup
    if limits.max_words * profile.max_batch_size > MOST_STRINGS:
        raise ProfileError(
            ("limits", "max_words"),
            f"{limits.max_words} for each of {profile.max_batch_size} prompts (max_batch_size) is "
            f"over {MOST_STRINGS} in one tensor; lower either",
        )
    if lookup.max_matching_ngram_size > limits.max_ngram_size:
        raise ProfileError(
            ("decoding", "prompt_lookup", "max_matching_ngram_size"),
            f"{lookup.max_matching_ngram_size} is over limits.max_ngram_size, which is "
            f"{limits.max_ngram_size}; lower the one or raise the other",
        )


def _tokenizer(profile: Profile) -> TokenizerFolder:
    """Return the tokenizer; refuse an engine that came with a different one."""
    chosen = profile.tokenizer.folder or profile.engines.target.tokenizer_folder
    if chosen is None:
        raise ProfileError(("tokenizer", "folder"), "is missing; the target brings no tokenizer")
    try:
        tokenizer = read_tokenizer(chosen)
    except CheckpointError as error:
        raise ProfileError(("tokenizer", "folder"), str(error)) from error
    for key_path, section in _sections(profile):
        own = section.tokenizer_folder
        if own is not None and own != chosen and has_tokenizer(own):
            theirs = _own_tokenizer(own, key_path)
            if theirs.ids != tokenizer.ids:
                raise ProfileError((*key_path, "checkpoint"), _difference(theirs, tokenizer))
    return tokenizer


def _own_tokenizer(folder: Path, engine: KeyPath) -> TokenizerFolder:
    try:
        return read_tokenizer(folder)
    except CheckpointError as error:
        raise ProfileError((*engine, "checkpoint"), str(error)) from error


def _sections(profile: Profile) -> Iterator[tuple[KeyPath, EngineSection]]:
    yield TARGET, profile.engines.target
    if profile.engines.draft:
        yield DRAFT, profile.engines.draft


def _difference(theirs: TokenizerFolder, ours: TokenizerFolder) -> str:
    """Say by name where two vocabularies part."""
    end = "; draft and target must share one vocabulary"
    token, _ = min(theirs.ids.items() ^ ours.ids.items(), key=lambda item: item[1])
    mine, other = (folder.ids.get(token, "no token") for folder in (theirs, ours))
    return f"token {token!r} is {mine} in {theirs.folder}, {other} in {ours.folder}{end}"


def _check_width(
    engine: EnginePlan, section: EngineSection, tokenizer: TokenizerFolder, key_path: KeyPath
) -> None:
    """An engine may be padded beyond the tokenizer, never narrower than it."""
    if engine.vocab_size < tokenizer.size:
        raise ProfileError(
            (*key_path, "checkpoint"),
            f"vocab_size {engine.vocab_size} in {section.tokenizer_folder} is less than the "
            f"{tokenizer.size} tokens of {tokenizer.folder}; use the checkpoint's own tokenizer",
        )


def _end_ids(profile: Profile, target: EnginePlan, tokenizer: TokenizerFolder) -> tuple[int, ...]:
    if target.end_ids or tokenizer.end_ids:
        return target.end_ids or tokenizer.end_ids
    end_id = tokenizer.special_id("eos_token")
    if end_id is None:
        raise ProfileError(
            (*TARGET, "checkpoint"),
            f"nothing in {profile.engines.target.tokenizer_folder} says which token ends an "
            "answer; put eos_token_id into its generation_config.json",
        )
    return (end_id,)


def _pad_id(target: EnginePlan, tokenizer: TokenizerFolder, *, default: int) -> int:
    known = (target.pad_id, tokenizer.special_id("pad_token"), default)
    return next(number for number in known if number is not None)
