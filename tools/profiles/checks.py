"""Checks that the sections, engines, vocabularies and drafters of a profile are consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from tandem.bls.drafters.registry import (
    BASELINE,
    DRAFTERS,
    PROMPT_LOOKUP,
    DrafterExists,
    DrafterKind,
    DrafterModuleError,
    DrafterName,
    read_kind,
    reject_taken,
    with_settings,
)
from tandem.contract.strings import MAX_STRINGS
from tandem.lookup.pools import MIN_ANSWER_TOKENS, DocumentError, read_documents
from tandem.tools.profiles.checkpoint import TokenizerFolder, has_tokenizer, read_tokenizer
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    EngineSection,
    KeyPath,
    ProfileError,
    locate_errors,
)
from tandem.tools.profiles.engines.emulated import EmulatedDraft
from tandem.tools.profiles.profile import DRAFT, TARGET, DrafterSection, Profile


def check_profile(profile: Profile) -> None:
    """Check everything that doesn't depend on files. Raises ProfileError."""
    _check_names(profile)
    target, draft = profile.engines.target, profile.engines.draft
    if draft:
        with locate_errors("engines"):
            draft.check_target(target, use_draft_logits=profile.decoding.use_draft_logits)
    _check_limits(profile)
    _check_documents(profile)


def _check_names(profile: Profile) -> None:
    """Reject two models with the same name, and profiles without exactly one stream entry."""
    models = profile.models.model_dump()
    if profile.engines.draft is None:
        del models["draft"]
    key_paths: dict[KeyPath, str] = {("models", role): name for role, name in models.items()}
    key_paths |= {("entries", i, "name"): entry.name for i, entry in enumerate(profile.entries)}
    adapters = getattr(profile.engines.target, "lora_adapters", None) or {}  # model names too
    key_paths |= {("engines", "target", "lora_adapters", name): name for name in adapters}
    for name, times in Counter(key_paths.values()).items():
        if times > 1:
            key_path = [p for p, used in key_paths.items() if used == name][-1]
            raise ProfileError(
                key_path, f"name '{name}' is already used by another model; names must be unique"
            )
    streams = sum(entry.kind == "stream" for entry in profile.entries)
    if streams != 1:
        raise ProfileError(
            ("entries",), f"must have exactly one entry of kind 'stream'; got {streams}"
        )


def check_drafters(
    profile: Profile, known: Mapping[DrafterName, DrafterKind], own: tuple[DrafterKind, ...]
) -> None:
    drafters: dict[KeyPath, str | None] = {("decoding", "drafter"): profile.decoding.drafter}
    for index, entry in enumerate(profile.entries):
        drafters[("entries", index, "drafter")] = entry.drafter
    sampling = {kind.name for kind in (*DRAFTERS.values(), *own) if kind.samples_from_draft_model}
    for key_path, drafter in drafters.items():
        if drafter is None or drafter in known:
            continue
        if drafter in sampling and profile.engines.draft is None:
            raise ProfileError(
                key_path,
                f"'{drafter}' needs engines.draft; add it, or use '{PROMPT_LOOKUP.name}' or "
                f"'{BASELINE.name}'",
            )
        raise ProfileError(
            key_path, f"must be one of {', '.join(known)} with these engines; got '{drafter}'"
        )


def check_draft_lengths(
    profile: Profile, known: Mapping[DrafterName, DrafterKind], target: EnginePlan
) -> None:
    decoding, drafting = profile.decoding, [k for k in known.values() if k.drafts_in_loop]
    lengths: dict[KeyPath, tuple[bool, int]] = {
        ("decoding", "draft_len"): (
            any(not kind.only_looks_up for kind in drafting),
            decoding.draft_len,
        ),
        ("decoding", "prompt_lookup", "prompt_lookup_num_tokens"): (
            any(kind.looks_up for kind in drafting),
            decoding.prompt_lookup.prompt_lookup_num_tokens,
        ),
    }
    for key_path, (matters, length) in lengths.items():
        if matters and length > target.max_draft_len:
            raise ProfileError(
                key_path,
                f"must be at most {target.max_draft_len}, which is engines.target.max_draft_len; "
                f"got {length}",
            )


def check_adapters(target: EnginePlan, draft: EnginePlan | None) -> None:
    """Reject adapters of the draft that no request can name."""
    for name in draft.lora_adapters if draft else ():
        if name not in target.lora_adapters:
            known = ", ".join(target.lora_adapters)
            raise ProfileError(
                (*DRAFT, "lora_adapters", name),
                "must have the name of an adapter of the target; "
                + (f"choose one of: {known}" if known else "the target has none"),
            )


def check_draft_ahead(profile: Profile, draft: EnginePlan | None) -> None:
    if profile.decoding.draft_ahead and not (draft and draft.capabilities.branches):
        reason = (
            "engines.draft is missing" if draft is None else "the draft engine doesn't support it"
        )
        raise ProfileError(
            ("decoding", "draft_ahead"), f"must be auto or false, because {reason}; got true"
        )


def _check_limits(profile: Profile) -> None:
    """Reject limits that exceed the maximum size of a tensor, and defaults that exceed a limit."""
    limits, lookup = profile.limits, profile.decoding.prompt_lookup
    if limits.max_words * profile.max_batch_size > MAX_STRINGS:
        raise ProfileError(
            ("limits", "max_words"),
            f"{limits.max_words} times max_batch_size {profile.max_batch_size} must be at most "
            f"{MAX_STRINGS}, the limit of a tensor; lower either",
        )
    if lookup.max_matching_ngram_size > limits.max_ngram_size:
        raise ProfileError(
            ("decoding", "prompt_lookup", "max_matching_ngram_size"),
            f"must be at most {limits.max_ngram_size}, which is limits.max_ngram_size; "
            f"got {lookup.max_matching_ngram_size}",
        )
    if 0 < lookup.max_pool_tokens < MIN_ANSWER_TOKENS:
        raise ProfileError(
            ("decoding", "prompt_lookup", "max_pool_tokens"),
            f"must be 0, or at least {MIN_ANSWER_TOKENS}; got {lookup.max_pool_tokens}",
        )


def _check_documents(profile: Profile) -> None:
    """Reject documents for lookup pools that can't be read."""
    lookup = profile.decoding.prompt_lookup
    if lookup.pools is None:
        return
    key_path = ("decoding", "prompt_lookup", "pools")
    if not lookup.max_pool_tokens:
        raise ProfileError(key_path, "needs max_pool_tokens above 0")
    try:
        for _ in read_documents(lookup.pools):
            pass
    except DocumentError as error:
        raise ProfileError(key_path, str(error)) from error
    except OSError as error:
        raise ProfileError(key_path, f"{lookup.pools} isn't a readable folder") from error


def target_tokenizer(profile: Profile) -> TokenizerFolder:
    """Return the target's tokenizer; reject a target whose checkpoint has a different one."""
    own = profile.engines.target.tokenizer_folder
    with locate_errors("tokenizer", "folder"):
        tokenizer = read_tokenizer(profile.tokenizer.folder or own)
    other = _other_tokenizer(own, tokenizer, TARGET)
    if other:
        raise ProfileError(
            (*TARGET, "checkpoint"),
            f"{_difference(other, tokenizer)}; the target must have the vocabulary of "
            "tokenizer.folder",
        )
    return tokenizer


def draft_tokenizer(profile: Profile, target: TokenizerFolder) -> TokenizerFolder | None:
    """Return the draft's tokenizer, or None if there is none or its vocabulary is the target's."""
    draft = profile.engines.draft
    if draft is None:
        return None
    own = _other_tokenizer(draft.tokenizer_folder, target, DRAFT)
    if own and isinstance(draft, EmulatedDraft):
        raise ProfileError(
            (*DRAFT, "tokenizer"),
            f"{_difference(own, target)}; emulated engines must share one vocabulary",
        )
    if own and profile.decoding.use_draft_logits:
        raise ProfileError(
            ("decoding", "use_draft_logits"),
            f"must be false: {_difference(own, target)}, so the draft's logits don't fit the "
            "target's vocabulary",
        )
    return own


def plan_translation(draft: EnginePlan) -> EnginePlan:
    """Return the plan of a draft engine that has its own vocabulary.

    Its drafts are translated through the text. Its logits and its branches can't be used: branches
    begin with token ids of the target.
    """
    able = replace(draft.capabilities, returns_logits=False, shares_logits=False, branches=False)
    return replace(draft, capabilities=able)


def _other_tokenizer(
    folder: Path, known: TokenizerFolder, key_path: KeyPath
) -> TokenizerFolder | None:
    """Return an engine's tokenizer if its vocabulary differs from ``known``, or None."""
    if folder == known.folder or not has_tokenizer(folder):
        return None
    with locate_errors(*key_path, "checkpoint"):
        own = read_tokenizer(folder)
    return None if own.ids == known.ids else own


def _difference(own: TokenizerFolder, other: TokenizerFolder) -> str:
    token, _ = min(own.ids.items() ^ other.ids.items(), key=lambda item: item[1])
    here, there = (known.ids.get(token, "no token") for known in (own, other))
    return f"token {token!r} is {here} in {own.folder} but {there} in {other.folder}"


def check_width(
    engine: EnginePlan, section: EngineSection, tokenizer: TokenizerFolder, key_path: KeyPath
) -> None:
    """Raise ProfileError if the logits are narrower than the vocabulary; padding is allowed.

    Also raises it if a remote engine has a different vocabulary.
    """
    if engine.vocabulary not in ("", tokenizer.fingerprint):
        raise ProfileError(
            (*key_path, "tokenizer"),
            f"{tokenizer.folder} isn't the tokenizer of the engine; set the engine's own",
        )
    if engine.vocab_size < tokenizer.size:
        raise ProfileError(
            (*key_path, "checkpoint"),
            f"vocab_size in {section.tokenizer_folder} must be at least {tokenizer.size}, the "
            f"tokens of {tokenizer.folder}; got {engine.vocab_size}; use the model's tokenizer",
        )


def find_end_ids(
    profile: Profile, target: EnginePlan, tokenizer: TokenizerFolder
) -> tuple[int, ...]:
    """Return the ids of the tokens that end an answer; raise ProfileError if there are none."""
    folder = profile.engines.target.tokenizer_folder
    end_id = tokenizer.special_id("eos_token")
    found = target.end_ids or tokenizer.end_ids or (() if end_id is None else (end_id,))
    if not found:
        raise ProfileError(
            (*TARGET, "checkpoint"),
            f"no end-of-sequence token in {folder}; set eos_token_id in its generation_config.json",
        )
    source = folder if target.end_ids else tokenizer.folder
    for number in found:
        if not 0 <= number < target.vocab_size:
            raise ProfileError(
                (*TARGET, "checkpoint"),
                f"eos_token_id in the configuration of {source} must be between 0 and "
                f"{target.vocab_size - 1}; got {number}",
            )
    return found


def find_pad_id(target: EnginePlan, tokenizer: TokenizerFolder, *, default: int) -> int:
    known = (target.pad_id, tokenizer.special_id("pad_token"), default)
    return next(number for number in known if number is not None)


def allowed_kinds(
    target: EnginePlan, draft: EnginePlan | None, own: tuple[DrafterKind, ...]
) -> dict[DrafterName, DrafterKind]:
    """Return the drafters that the engines support, the preferred first and the baseline last."""
    if target.capabilities.drafts_itself:
        return {kind.name: kind for kind in DRAFTERS.values() if kind.in_engine}
    rows = []
    if target.capabilities.verifies_drafts and target.max_draft_len:
        rows = [kind for kind in (*DRAFTERS.values(), *own) if kind.drafts_in_loop]
    fit = [kind for kind in rows if draft or not kind.samples_from_draft_model]
    return {kind.name: kind for kind in (*fit, BASELINE)}


def own_kinds(sections: Sequence[DrafterSection]) -> tuple[DrafterKind, ...]:
    """Import the custom drafters of a profile; raise ProfileError if one can't be used."""
    own, names, files = list[DrafterKind](), list(DRAFTERS), set[str]()
    for index, section in enumerate(sections):
        key_path: KeyPath = ("drafters", index)
        try:
            kind = read_kind(section.module)
            reject_taken(kind, names)
        except (DrafterModuleError, DrafterExists) as error:
            raise ProfileError((*key_path, "module"), str(error)) from error
        if section.module.name in files:
            raise ProfileError(
                (*key_path, "module"),
                f"file name {section.module.name} is already used by another drafter; rename one, "
                "because a rendered repository has them in one folder",
            )
        _check_settings(kind, section.settings, (*key_path, "settings"))
        names.append(kind.name)
        files.add(section.module.name)
        own.append(kind)
    return tuple(own)


def _check_settings(kind: DrafterKind, given: Mapping[str, Any], key_path: KeyPath) -> None:
    """Reject unknown settings, values of the wrong type, and values that the drafter rejects."""
    hints = get_type_hints(type(kind.settings)) if kind.settings else {}
    for key in given.keys() & hints.keys():
        try:
            TypeAdapter(hints[key]).validate_python(given[key], strict=True)
        except ValidationError as error:
            text = error.errors(include_url=False)[0]["msg"].replace("Input should be", "must be")
            raise ProfileError((*key_path, key), f"{text}; got {given[key]!r}") from error
    try:
        with_settings(kind, given)
    except DrafterModuleError as error:
        raise ProfileError(key_path, str(error)) from error
