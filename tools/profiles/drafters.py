"""The drafters of a deployment, and the profile section that adds custom drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError

from tandem.bls.drafters.registry import (
    BASELINE,
    DRAFTERS,
    DrafterExists,
    DrafterKind,
    DrafterModuleError,
    DrafterName,
    read_kind,
    reject_taken,
    with_settings,
)
from tandem.tools.profiles.engines.base import (
    ConfigSection,
    EnginePlan,
    Folder,
    KeyPath,
    ProfileError,
)


class DrafterSection(ConfigSection):
    """One custom drafter."""

    module: Folder
    """Python file of the drafter."""
    settings: Mapping[str, JsonValue] = {}
    """Settings that differ from the drafter's defaults."""


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
