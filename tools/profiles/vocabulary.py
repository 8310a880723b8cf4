"""The vocabulary that the engines of a profile share: its tokenizer, and its special tokens."""

from __future__ import annotations

from pathlib import Path

from tandem.tools.profiles.checkpoint import (
    CheckpointError,
    TokenizerFolder,
    has_tokenizer,
    read_tokenizer,
)
from tandem.tools.profiles.engines.base import EnginePlan, EngineSection, KeyPath, ProfileError
from tandem.tools.profiles.profile import TARGET, Profile, sections_of


def shared_tokenizer(profile: Profile) -> TokenizerFolder:
    """Return the tokenizer; refuse an engine that came with a different one."""
    chosen = profile.tokenizer.folder or profile.engines.target.tokenizer_folder
    if chosen is None:
        raise ProfileError(("tokenizer", "folder"), "is missing; the target brings no tokenizer")
    try:
        tokenizer = read_tokenizer(chosen)
    except CheckpointError as error:
        raise ProfileError(("tokenizer", "folder"), str(error)) from error
    for key_path, section in sections_of(profile):
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


def _difference(theirs: TokenizerFolder, ours: TokenizerFolder) -> str:
    end = "; draft and target must share one vocabulary"
    token, _ = min(theirs.ids.items() ^ ours.ids.items(), key=lambda item: item[1])
    mine, other = (folder.ids.get(token, "no token") for folder in (theirs, ours))
    return f"token {token!r} is {mine} in {theirs.folder}, {other} in {ours.folder}{end}"


def check_width(
    engine: EnginePlan, section: EngineSection, tokenizer: TokenizerFolder, key_path: KeyPath
) -> None:
    """Refuse an engine that is narrower than the tokenizer; one may be padded beyond it."""
    if engine.vocab_size < tokenizer.size:
        raise ProfileError(
            (*key_path, "checkpoint"),
            f"vocab_size {engine.vocab_size} in {section.tokenizer_folder} is less than the "
            f"{tokenizer.size} tokens of {tokenizer.folder}; use the checkpoint's own tokenizer",
        )


def end_ids_of(profile: Profile, target: EnginePlan, tokenizer: TokenizerFolder) -> tuple[int, ...]:
    """Return the tokens that end an answer; refuse a deployment of which nothing says them."""
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


def pad_id_of(target: EnginePlan, tokenizer: TokenizerFolder, *, default: int) -> int:
    known = (target.pad_id, tokenizer.special_id("pad_token"), default)
    return next(number for number in known if number is not None)
