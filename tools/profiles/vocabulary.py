"""The vocabulary that the engines of a profile share: its tokenizer, and its special tokens."""

from __future__ import annotations

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
    located,
)
from tandem.tools.profiles.profile import TARGET, Profile, sections_of


def shared_tokenizer(profile: Profile) -> TokenizerFolder:
    """Return the tokenizer; reject an engine that came with a different one."""
    chosen = profile.tokenizer.folder or profile.engines.target.tokenizer_folder
    if chosen is None:
        raise ProfileError(("tokenizer", "folder"), "is missing; the target has no tokenizer")
    with located("tokenizer", "folder"):
        shared = read_tokenizer(chosen)
    for key_path, section in sections_of(profile):
        folder = section.tokenizer_folder
        if folder is None or folder == chosen or not has_tokenizer(folder):
            continue
        with located(*key_path, "checkpoint"):
            own = read_tokenizer(folder)
        if own.ids != shared.ids:
            token, _ = min(own.ids.items() ^ shared.ids.items(), key=lambda item: item[1])
            here, there = (known.ids.get(token, "no token") for known in (own, shared))
            raise ProfileError(
                (*key_path, "checkpoint"),
                f"token {token!r} is {here} in {folder} but {there} in {chosen}; draft and target "
                "must share a vocabulary",
            )
    return shared


def check_width(
    engine: EnginePlan, section: EngineSection, tokenizer: TokenizerFolder, key_path: KeyPath
) -> None:
    """Reject an engine that is narrower than the tokenizer; padding beyond it is fine."""
    if engine.vocab_size < tokenizer.size:
        raise ProfileError(
            (*key_path, "checkpoint"),
            f"vocab_size in {section.tokenizer_folder} must be at least {tokenizer.size}, the "
            f"tokens of {tokenizer.folder}; got {engine.vocab_size}; use the model's tokenizer",
        )


def end_ids_of(profile: Profile, target: EnginePlan, tokenizer: TokenizerFolder) -> tuple[int, ...]:
    """Return the tokens that end an answer; reject a deployment that doesn't define any."""
    if target.end_ids or tokenizer.end_ids:
        return target.end_ids or tokenizer.end_ids
    end_id = tokenizer.special_id("eos_token")
    if end_id is None:
        raise ProfileError(
            (*TARGET, "checkpoint"),
            f"no end-of-sequence token in {profile.engines.target.tokenizer_folder}; set "
            "eos_token_id in its generation_config.json",
        )
    return (end_id,)


def pad_id_of(target: EnginePlan, tokenizer: TokenizerFolder, *, default: int) -> int:
    known = (target.pad_id, tokenizer.special_id("pad_token"), default)
    return next(number for number in known if number is not None)
