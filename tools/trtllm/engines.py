"""Compares the TensorRT engines of a profile with the built engines on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_json
from tandem.tools.profiles.checks import check_profile
from tandem.tools.profiles.engines.base import locate_errors
from tandem.tools.profiles.engines.tensorrtllm import TensorRTLLMDraft
from tandem.tools.profiles.profile import Profile, convert_errors, read_profile

LENGTHS = ("max_batch_size", "max_seq_len", "max_num_tokens", "max_draft_len")
PLUGINS = ("use_paged_context_fmha", "tokens_per_block")


def trt_engines(profile: Profile) -> dict[str, TensorRTLLMDraft]:
    """Return the engines by name, the draft first, because building it takes only minutes."""
    sections = {"draft": profile.engines.draft, "target": profile.engines.target}
    return {n: section for n, section in sections.items() if isinstance(section, TensorRTLLMDraft)}


def engines_to_build(path: Path) -> tuple[Profile, dict[str, TensorRTLLMDraft]]:
    """Read a profile whose checkpoints can be on another machine.

    Returns the profile and its TensorRT engines by name. Raises TandemError if the profile itself
    is invalid.
    """
    profile = read_profile(path)
    engines = trt_engines(profile)
    with convert_errors(path):
        for name, engine in engines.items():
            with locate_errors("engines", name):
                engine.check_settings()
        check_profile(profile)
    return profile, engines


def check_built_engines(engines: Mapping[str, TensorRTLLMDraft]) -> None:
    """Raise TandemError if an engine is missing or was built with different settings."""
    for name, engine in engines.items():
        path = engine.engine_dir / "config.json"
        if not path.is_file():
            raise TandemError(
                f"{name}: no engine in {engine.engine_dir}; build it with tandem build"
            )
        config = read_json(path)
        for setting, wanted, found in _compare(engine, config):
            if found is not None and found != wanted:
                raise TandemError(
                    f"{name}: {engine.engine_dir} was built with {setting} {found}, but the "
                    f"profile has {wanted}; rebuild it with tandem build, or change the profile"
                )


def _compare(engine: TensorRTLLMDraft, config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (setting, value in the profile, value in the engine's config.json or None)."""
    build, given = config.get("build_config", {}), engine.build.model_dump()
    for name in LENGTHS:
        yield name, given.get(name, 0), build.get(name)
    for name in PLUGINS:
        yield name, given[name], build.get("plugin_config", {}).get(name)
    model = config.get("pretrained_config", {})
    yield "logits_dtype", given["logits_dtype"], model.get("logits_dtype")
    for name in ("tp_size", "pp_size"):
        yield name, getattr(engine, name), model.get("mapping", {}).get(name)
