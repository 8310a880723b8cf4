"""TensorRT engines: the commands that build them, and checks of built engines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_checkpoint_config, read_json
from tandem.tools.profiles.checks import check_profile
from tandem.tools.profiles.engines.base import locate_errors
from tandem.tools.profiles.engines.tensorrtllm import BuildSection, TensorRTLLMDraft
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


EXAMPLES = Path("/app/examples")  # TensorRT-LLM's examples in NVIDIA's image
QUANTIZE = Path("quantization", "quantize.py")
CONVERT = Path("convert_checkpoint.py")
CONVERTERS = {  # model_type in config.json -> folder in the examples
    "llama": Path("models", "core", "llama"),
    "mistral": Path("models", "core", "llama"),
}
UNSEEN = "llama"  # the assumed model_type of a checkpoint that is on another machine


class BuildStep(NamedTuple):
    """One command. engine: `target` or `draft`. tool: the program's name. argv: the command."""

    engine: str
    tool: str
    argv: tuple[str, ...]


def engine_steps(name: str, engine: TensorRTLLMDraft, examples: Path) -> Iterator[BuildStep]:
    """Yield the steps that build one engine; raise TandemError if no tool converts it.

    name: `target` or `draft`. examples: TensorRT-LLM's examples folder, which contains the tools.
    """
    converted = engine.engine_dir.with_name(f"{engine.engine_dir.name}-checkpoint")
    yield _convert(name, engine, examples, converted)
    yield BuildStep(
        name,
        "trtllm-build",
        (
            "trtllm-build",
            f"--checkpoint_dir={converted}",
            f"--output_dir={engine.engine_dir}",
            *_flags(engine.build),
        ),
    )


def script(steps: Sequence[BuildStep]) -> str:
    lines = ["#!/bin/sh", "set -eu"]
    for step in steps:
        flags = [word for word in step.argv if word.startswith("--")]  # one per line
        program = step.argv[: len(step.argv) - len(flags)]
        command = " \\\n  ".join([shlex.join(program), *map(shlex.quote, flags)])
        lines += ["", f"# {step.engine}: {step.tool}", command]
    return "\n".join(lines) + "\n"


def _convert(name: str, engine: TensorRTLLMDraft, examples: Path, output: Path) -> BuildStep:
    convert = engine.convert
    common = (
        f"--model_dir={engine.checkpoint}",
        f"--output_dir={output}",
        f"--dtype={convert.dtype}",
        f"--tp_size={engine.tp_size}",
        f"--pp_size={engine.pp_size}",
    )
    if convert.qformat is None:
        model_type = read_checkpoint_config(engine.checkpoint).get("model_type", UNSEEN)
        if model_type not in CONVERTERS:
            raise TandemError(
                f"engines.{name}.convert has no converter for model_type '{model_type}' (only for "
                f"{', '.join(CONVERTERS)}); set qformat to use quantize.py, which supports more",
            )
        converter = examples / CONVERTERS[model_type] / CONVERT
        return BuildStep(name, CONVERT.name, ("python3", str(converter), *common))
    argv = (
        *("python3", str(examples / QUANTIZE), *common, f"--qformat={convert.qformat}"),
        *([f"--kv_cache_dtype={convert.kv_cache_dtype}"] if convert.kv_cache_dtype else []),
        f"--calib_size={convert.calib_size}",
        *([f"--calib_dataset={convert.calib_dataset}"] if convert.calib_dataset else []),
    )
    return BuildStep(name, QUANTIZE.name, argv)


def _flags(build: BuildSection) -> Iterator[str]:
    """Yield the flags of trtllm-build for a profile's build section."""
    for name, value in build:
        if name.startswith("gather_"):
            if value:
                yield f"--{name}"
        elif isinstance(value, bool):
            yield f"--{name}={'enable' if value else 'disable'}"
        elif isinstance(value, tuple):
            yield from (f"--{name}", *value)
        elif value is not None:
            yield f"--{name}={value}"
