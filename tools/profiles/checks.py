"""Checks that the sections of a profile are consistent and that its engines support them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tandem.bls.drafters.registry import BASELINE, DRAFTERS, PROMPT_LOOKUP, DrafterKind, DrafterName
from tandem.contract.strings import MAX_STRINGS
from tandem.lookup.pools import MIN_ANSWER_TOKENS, DocumentError, read_documents
from tandem.tools.profiles.engines.base import EnginePlan, KeyPath, ProfileError, locate_errors
from tandem.tools.profiles.profile import DRAFT, Profile


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
