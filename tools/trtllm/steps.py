"""The commands that build TensorRT engines from Hugging Face checkpoints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_checkpoint_config
from tandem.tools.profiles.engines.tensorrtllm import BuildSection, TensorRTLLMDraft

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
