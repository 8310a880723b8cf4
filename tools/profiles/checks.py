"""Checks that the sections of a profile are consistent and supported by its engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tandem.bls.drafters.registry import CONTROL, PROMPT_LOOKUP, DrafterKind, DrafterName
from tandem.contract.strings import MOST_STRINGS
from tandem.lookup.pools import LEAST_COUNTED
from tandem.tools.profiles.drafters import OwnDrafter, all_kinds
from tandem.tools.profiles.engines.base import EnginePlan, KeyPath, ProfileError
from tandem.tools.profiles.engines.emulated import EmulatedDraft, EmulatedTarget
from tandem.tools.profiles.engines.vllm import VllmDraft
from tandem.tools.profiles.profile import DRAFT, Profile


def check_names(profile: Profile) -> None:
    """Reject two models with one name, and any number of stream entries but one."""
    models = profile.models.model_dump()
    if profile.engines.draft is None:
        del models["draft"]
    key_paths: dict[KeyPath, str] = {("models", job): name for job, name in models.items()}
    key_paths |= {("entries", i, "name"): entry.name for i, entry in enumerate(profile.entries)}
    adapters = getattr(profile.engines.target, "lora_adapters", None) or {}  # models of the gateway
    key_paths |= {("engines", "target", "lora_adapters", name): name for name in adapters}
    for name, times in Counter(key_paths.values()).items():
        if times > 1:
            key_path = [p for p, used in key_paths.items() if used == name][-1]
            raise ProfileError(key_path, f"a second model named '{name}'; give each its own name")
    streams = sum(entry.kind == "stream" for entry in profile.entries)
    if streams != 1:
        raise ProfileError(
            ("entries",), f"{streams} entries of kind 'stream'; one must hold the loop"
        )


def check_languages(profile: Profile) -> None:
    """Reject emulated engines with different languages, because no draft would ever be right."""
    target, draft = profile.engines.target, profile.engines.draft
    if not (isinstance(target, EmulatedTarget) and isinstance(draft, EmulatedDraft)):
        return
    if target.language != draft.language:
        raise ProfileError((*DRAFT, "language"), "differs from the target's; give both the same")


def check_gpu_memory(profile: Profile) -> None:
    """Reject two vLLM engines that together ask for more than the whole memory of a GPU."""
    target, draft = profile.engines.target, profile.engines.draft
    if not (isinstance(target, VllmDraft) and isinstance(draft, VllmDraft)):
        return
    total = round(target.gpu_memory_fraction + draft.gpu_memory_fraction, 6)
    if total > 1 and target.devices & draft.devices:
        raise ProfileError(
            (*DRAFT, "gpu_memory_fraction"),
            f"with engines.target's, must be at most 1 on a shared GPU; got {total:g}; set both, "
            "for example 0.8 and 0.15",
        )


def check_drafters(
    profile: Profile, known: Mapping[DrafterName, DrafterKind], own: tuple[OwnDrafter, ...]
) -> None:
    drafters: dict[KeyPath, str | None] = {("decoding", "drafter"): profile.decoding.drafter}
    for index, entry in enumerate(profile.entries):
        drafters[("entries", index, "drafter")] = entry.drafter
    sampling = {kind.name for kind in all_kinds(own) if kind.samples_from_draft_model}
    for key_path, drafter in drafters.items():
        if drafter is None or drafter in known:
            continue
        if drafter in sampling and profile.engines.draft is None:
            raise ProfileError(
                key_path,
                f"'{drafter}' needs engines.draft, which is missing; add it or say "
                f"'{PROMPT_LOOKUP.name}' or '{CONTROL.name}'",
            )
        raise ProfileError(key_path, f"'{drafter}' given, these engines allow {', '.join(known)}")


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
                f"{length} is over engines.target.max_draft_len, which is "
                f"{target.max_draft_len}; lower the one or raise the other",
            )


def check_draft_ahead(profile: Profile, draft: EnginePlan | None) -> None:
    if profile.decoding.draft_ahead and not (draft and draft.capabilities.branches):
        reason = "engines.draft is missing" if draft is None else "the draft engine cannot do it"
        raise ProfileError(("decoding", "draft_ahead"), f"true, but {reason}; say auto or false")


def check_limits(profile: Profile) -> None:
    """Reject limits above what a tensor may hold, and defaults above the limits."""
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


def check_pools(profile: Profile) -> None:
    """Reject pools that are too small for any answer."""
    most, loops = profile.decoding.prompt_lookup.max_pool_tokens, profile.instances
    if most and most // loops < LEAST_COUNTED:
        raise ProfileError(
            ("decoding", "prompt_lookup", "max_pool_tokens"),
            f"{most} tokens for {loops} loop{'s' * (loops > 1)} hold no answer, each of which "
            f"counts for {LEAST_COUNTED} tokens at least; say 0, or {loops * LEAST_COUNTED} or "
            "more",
        )


def check_instances(profile: Profile) -> None:
    """Reject more loops than there can be requests."""
    most = profile.admission.max_requests
    if profile.instances > most:
        raise ProfileError(
            ("instances",),
            f"{profile.instances} loops for {most} sequences at once (admission.max_requests); "
            "lower the one or raise the other",
        )
