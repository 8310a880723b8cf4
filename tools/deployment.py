"""A profile that was checked against its checkpoints: what each model of it will be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from bls.settings import ForwarderSettings, LoopSettings
from engines import traits
from engines.errors import LoadError
from engines.torch.settings import TorchSettings
from engines.traits import Traits
from postprocessing.settings import DetokenizerSettings
from preprocessing.settings import TokenizerSettings

from . import profile as profiles
from .checkpoint import (
    Checkpoint,
    CheckpointError,
    TokenizerFolder,
    has_tokenizer,
    read_checkpoint,
    read_tokenizer,
)
from .errors import TandemError
from .profile import Entry, Place, Profile, ProfileError, read_profile

CHECKPOINT = "checkpoint"  # folders beside model.py
TOKENIZER = "tokenizer"
SEQUENCES_CACHED = 16  # what a KV cache holds where the profile does not say, if memory allows
KV_BYTES = 2**30
MAX_SEQ_LEN = 4096
SPARE_THREADS = 32
TARGET: Place = ("engines", "target")
DRAFT: Place = ("engines", "draft")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Engine:
    """An engine of a deployment: its checkpoint, what it is told, and what its kind can do."""

    checkpoint: Checkpoint
    settings: TorchSettings
    traits: Traits


@dataclass(frozen=True)
class Deployment:
    """A profile whose parts fit together; made by ``load`` or ``check``."""

    profile: Profile
    tokenizer: TokenizerFolder
    end_ids: tuple[int, ...]
    pad_id: int
    target: Engine
    draft: Engine | None

    @property
    def thread_pool_size(self) -> int:
        """BLS calls that one model can have in flight at once.

        The loop's worst case is a call and a stop for each running sequence, and the tokenizer's
        for each that waits; a forwarder's is one for each of both, and those to be refused.
        """
        admission = self.profile.admission
        return 2 * admission.max_requests + admission.max_queue + SPARE_THREADS

    @cached_property
    def stream_entry(self) -> Entry:
        """The entry that holds the loop."""
        return next(entry for entry in self.profile.entries if entry.kind == "stream")

    def tokenizer_settings(self) -> TokenizerSettings:
        """Return what `preprocessing` is told."""
        return TokenizerSettings(
            tokenizer_dir=TOKENIZER,
            add_special_tokens=self.profile.tokenizer.add_special_tokens,
            vocab_size=self.target.checkpoint.vocab_size,
            end_id=self.end_ids[0],
            pad_id=self.pad_id,
        )

    def detokenizer_settings(self) -> DetokenizerSettings:
        """Return what `postprocessing` is told."""
        return DetokenizerSettings(
            tokenizer_dir=TOKENIZER,
            skip_special_tokens=self.profile.tokenizer.skip_special_tokens,
        )

    def loop_settings(self) -> LoopSettings:
        """Return what the stream entry is told."""
        profile, target, draft = self.profile, self.target, self.draft
        engines = [engine.settings for engine in (target, draft) if engine]
        return LoopSettings(
            target_model=profile.models.target,
            draft_model=profile.models.draft if draft else None,
            preprocessing_model=profile.models.preprocessing,
            postprocessing_model=profile.models.postprocessing,
            vocab_size=target.checkpoint.vocab_size,
            draft_vocab_size=draft.checkpoint.vocab_size if draft else 0,
            draft_max_seq_len=draft.settings.max_seq_len if draft else 0,
            end_ids=self.end_ids,
            max_seq_len=target.settings.max_seq_len,
            max_draft_len=target.settings.max_draft_len,
            target_keyed_randomness=target.traits.keyed_randomness,
            draft_keyed_randomness=draft is not None and draft.traits.keyed_randomness,
            target_log_probs_with_drafts=target.traits.log_probs_with_drafts,
            drafter=self.stream_entry.drafter
            or profile.decoding.drafter
            or ("draft_model" if draft else "none"),
            draft_len=profile.decoding.draft_len,
            use_draft_logits=profile.decoding.use_draft_logits,
            exclude_input_in_output=profile.decoding.exclude_input_in_output,
            kv_tokens=min(engine.kv_cache_tokens for engine in engines),
            kv_block_tokens=max(engine.kv_block_tokens for engine in engines),
            max_requests=profile.admission.max_requests,
            max_queue=profile.admission.max_queue,
            target_timeout=profile.timeouts.target,
            draft_timeout=profile.timeouts.draft,
            request_timeout=profile.timeouts.request,
            drafter_pause=profile.timeouts.drafter_pause,
        )

    def forwarder_settings(self, entry: Entry) -> ForwarderSettings:
        """Return what a forward entry is told."""
        return ForwarderSettings(
            stream_model=self.stream_entry.name,
            drafter=entry.drafter,
            request_timeout=self.profile.timeouts.request,
        )


def load(path: Path) -> Deployment:
    """Read a profile and check it against its checkpoints.

    Raises TandemError: one line with the file, the place in it, what is wrong and what is right.
    """
    profile, source = read_profile(path)
    try:
        return check(profile)
    except ProfileError as error:
        raise source.error(error.place, str(error)) from error


def for_checkpoints(target: Path, draft: Path | None) -> Deployment:
    """Return a deployment of one's own checkpoints, without a profile; raise TandemError."""
    engines = {"target": {"checkpoint": str(target.absolute())}}
    if draft:
        engines["draft"] = {"checkpoint": str(draft.absolute())}
    profile = Profile.model_validate({"name": target.name, "engines": engines})
    try:
        return check(profile)
    except ProfileError as error:
        option = "--draft: " if error.place[:2] == DRAFT else "--target: "
        raise TandemError(option + str(error)) from error


def check(profile: Profile) -> Deployment:
    """Return the deployment of a profile; raise ProfileError where its parts do not fit."""
    _check_names(profile)
    _check_drafters(profile)
    checkpoints = {
        place: _read(read_checkpoint, engine.checkpoint, place)
        for place, engine in _engines(profile)
    }
    tokenizer = _tokenizer(profile)
    for place, checkpoint in checkpoints.items():
        _check_width(checkpoint, tokenizer, place)
    engines = {
        place: _engine(engine, checkpoints[place], place) for place, engine in _engines(profile)
    }
    end_ids = _end_ids(checkpoints[TARGET], tokenizer)
    return Deployment(
        profile=profile,
        tokenizer=tokenizer,
        end_ids=end_ids,
        pad_id=_pad_id(checkpoints[TARGET], tokenizer, default=end_ids[0]),
        target=engines[TARGET],
        draft=engines.get(DRAFT),
    )


def _check_names(profile: Profile) -> None:
    """Refuse two models of one name, and anything but one stream entry."""
    models = profile.models.model_dump()
    if profile.engines.draft is None:
        del models["draft"]
    places: dict[Place, str] = {("models", job): name for job, name in models.items()}
    places |= {("entries", i, "name"): entry.name for i, entry in enumerate(profile.entries)}
    for name, times in Counter(places.values()).items():
        if times > 1:
            place = [p for p, used in places.items() if used == name][-1]
            raise ProfileError(place, f"a second model named '{name}'; give each its own name")
    streams = sum(entry.kind == "stream" for entry in profile.entries)
    if streams != 1:
        raise ProfileError(
            ("entries",), f"{streams} entries of kind 'stream'; one must hold the loop"
        )


def _check_drafters(profile: Profile) -> None:
    """Refuse a default drafter without its engine, and drafts that the target won't verify."""
    drafters: dict[Place, str | None] = {("decoding", "drafter"): profile.decoding.drafter}
    for index, entry in enumerate(profile.entries):
        drafters[("entries", index, "drafter")] = entry.drafter
    for place, drafter in drafters.items():
        if drafter == "draft_model" and profile.engines.draft is None:
            raise ProfileError(
                place, "'draft_model' needs engines.draft, which is missing; add it or say 'none'"
            )
    longest = profile.engines.target.max_draft_len
    if profile.engines.draft and profile.decoding.draft_len > longest:
        raise ProfileError(
            ("decoding", "draft_len"),
            f"{profile.decoding.draft_len} is over engines.target.max_draft_len, which is "
            f"{longest}; lower the one or raise the other",
        )


def _read(reader: Callable[[Path], Read], folder: Path, engine: Place) -> Read:
    try:
        return reader(folder)
    except CheckpointError as error:
        raise ProfileError((*engine, "checkpoint"), str(error)) from error


def _tokenizer(profile: Profile) -> TokenizerFolder:
    """Return the tokenizer; refuse a checkpoint that came with a different one."""
    chosen = profile.tokenizer.folder or profile.engines.target.checkpoint
    try:
        tokenizer = read_tokenizer(chosen)
    except CheckpointError as error:
        raise ProfileError(("tokenizer", "folder"), str(error)) from error
    for place, engine in _engines(profile):
        if engine.checkpoint != chosen and has_tokenizer(engine.checkpoint):
            theirs = _read(read_tokenizer, engine.checkpoint, place)
            if theirs.ids != tokenizer.ids:
                raise ProfileError((*place, "checkpoint"), _difference(theirs, tokenizer))
    return tokenizer


def _engines(profile: Profile) -> Iterator[tuple[Place, profiles.TorchEngine]]:
    yield TARGET, profile.engines.target
    if profile.engines.draft:
        yield DRAFT, profile.engines.draft


def _difference(theirs: TokenizerFolder, ours: TokenizerFolder) -> str:
    """Say by name where two vocabularies part."""
    end = "; draft and target must share one vocabulary"
    token, _ = min(theirs.ids.items() ^ ours.ids.items(), key=lambda item: item[1])
    mine, other = (folder.ids.get(token, "no token") for folder in (theirs, ours))
    return f"token {token!r} is {mine} in {theirs.folder}, {other} in {ours.folder}{end}"


def _check_width(checkpoint: Checkpoint, tokenizer: TokenizerFolder, engine: Place) -> None:
    """A checkpoint may be padded beyond the tokenizer, never narrower than it."""
    if checkpoint.vocab_size < tokenizer.size:
        raise ProfileError(
            (*engine, "checkpoint"),
            f"vocab_size {checkpoint.vocab_size} in {checkpoint.folder} is less than the "
            f"{tokenizer.size} tokens of {tokenizer.folder}; use the checkpoint's own tokenizer",
        )


def _engine(engine: profiles.TorchEngine, checkpoint: Checkpoint, place: Place) -> Engine:
    """Fill in what the profile leaves to the checkpoint."""
    reach = checkpoint.max_positions
    length = engine.max_seq_len or min(reach or MAX_SEQ_LEN, MAX_SEQ_LEN)
    if reach is not None and length > reach:
        raise ProfileError(
            (*place, "max_seq_len"),
            f"{length} is over the {reach} positions of {checkpoint.folder}",
        )
    drafts = engine.max_draft_len if isinstance(engine, profiles.TorchTarget) else 0
    if drafts >= length - 1:
        raise ProfileError(
            (*place, "max_draft_len"), f"{drafts} leaves no room for text in max_seq_len {length}"
        )
    cache = engine.kv_cache_tokens or _default_cache(checkpoint, length)
    if cache < length:
        raise ProfileError(
            (*place, "kv_cache_tokens"),
            f"{cache} is less than one sequence of max_seq_len {length}",
        )
    given = engine.model_dump(exclude={"kind", "checkpoint", "max_seq_len", "kv_cache_tokens"})
    try:
        settings = TorchSettings(
            checkpoint=CHECKPOINT, max_seq_len=length, kv_cache_tokens=cache, **given
        )
    except LoadError as error:
        raise ProfileError(place, str(error)) from error
    return Engine(checkpoint, settings, traits.TORCH)


def _default_cache(checkpoint: Checkpoint, max_seq_len: int) -> int:
    """Room for some whole sequences, in a gigabyte if that holds one."""
    affordable = KV_BYTES // max(checkpoint.kv_bytes_per_token, 1)
    return max(max_seq_len, min(SEQUENCES_CACHED * max_seq_len, affordable))


def _end_ids(target: Checkpoint, tokenizer: TokenizerFolder) -> tuple[int, ...]:
    if target.end_ids:
        return target.end_ids
    end_id = tokenizer.special_id("eos_token")
    if end_id is None:
        raise ProfileError(
            (*TARGET, "checkpoint"),
            f"nothing in {target.folder} says which token ends an answer; put eos_token_id into "
            "its generation_config.json",
        )
    return (end_id,)


def _pad_id(target: Checkpoint, tokenizer: TokenizerFolder, *, default: int) -> int:
    known = (target.pad_id, tokenizer.special_id("pad_token"), default)
    return next(number for number in known if number is not None)
