"""Which engines of a profile are TensorRT's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.tools.profiles.engines.base import ProfileError
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.profiles.pair import check_pair
from tandem.tools.profiles.profile import Profile, read_profile


def trt_engines(profile: Profile) -> dict[str, TensorRTLLMDraft]:
    """Return them by name, the draft first: it is built in minutes, and may fail as well."""
    sections = {"draft": profile.engines.draft, "target": profile.engines.target}
    return {n: section for n, section in sections.items() if isinstance(section, TensorRTLLMDraft)}


def engines_to_plan(path: Path) -> tuple[Profile, dict[str, TensorRTLLMDraft]]:
    """Read a profile whose checkpoints may be on another machine; return it and its engines.

    Raises TandemError where the profile itself is wrong.
    """
    profile, source = read_profile(path)
    engines = trt_engines(profile)
    try:
        for name, engine in engines.items():
            engine.check_settings(("engines", name))
        check_pair(
            profile.engines.target,
            profile.engines.draft,
            use_draft_logits=profile.decoding.use_draft_logits,
        )
    except ProfileError as error:
        raise source.error(error.key_path, str(error)) from error
    return profile, engines


def with_checkpoints(engines: Mapping[str, TensorRTLLMDraft]) -> dict[str, TensorRTLLMDraft]:
    """Return those whose checkpoints are on this machine."""
    return {name: engine for name, engine in engines.items() if engine.checkpoint.is_dir()}
