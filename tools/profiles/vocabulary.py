"""Finds the tokenizers of a profile's engines and their special tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tandem.tools.profiles.checkpoint import (
    TokenizerFolder,
    has_tokenizer,
    read_tokenizer,
)
from tandem.tools.profiles.engines.base import (
    EnginePlan,
    EngineSection,
    KeyPath,
    ProfileError,
    locate_errors,
)
from tandem.tools.profiles.engines.emulated import EmulatedDraft
from tandem.tools.profiles.profile import DRAFT, TARGET, Profile


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
