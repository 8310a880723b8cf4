"""From a Hugging Face checkpoint to a TensorRT engine: the commands, in their order."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.profiles.engines.tensorrtllm import BuildSection, TensorRTLLMDraft
from tandem.tools.trtllm.shape import read_model_type

EXAMPLES = Path("/app/examples")  # of TensorRT-LLM, where NVIDIA's image has them
QUANTIZE = Path("quantization", "quantize.py")
CONVERT = Path("convert_checkpoint.py")
CONVERTERS = {  # model_type of config.json -> its folder in the examples
    "llama": Path("models", "core", "llama"),
    "mistral": Path("models", "core", "llama"),
}
UNSEEN = "llama"  # what a checkpoint is taken for that is not on this machine


@dataclass(frozen=True)
class BuildStep:
    """One command. source: the folder that it reads. output: the folder that it writes."""

    engine: str
    tool: str
    argv: tuple[str, ...]
    source: Path
    output: Path

    @property
    def name(self) -> str:
        return f"{self.engine}: {self.tool}"

    @property
    def log(self) -> Path:
        return self.output.with_name(f"{self.output.name}.log")

    @property
    def stamp(self) -> Path:
        """The file in the output that holds the digest of the step that made it."""
        return self.output / ".tandem-build"

    @property
    def is_fresh(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == self.digest()

    def digest(self) -> str:
        """Return a hash of the command, the files it reads and the version of TensorRT-LLM."""
        files = sorted(path for path in self.source.glob("*") if path.is_file())
        read = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        try:
            version = metadata.version("tensorrt_llm")
        except metadata.PackageNotFoundError:
            version = "none"
        return hashlib.sha256(json.dumps([self.argv, version, read]).encode()).hexdigest()


def engine_steps(
    name: str, engine: TensorRTLLMDraft, examples: Path = EXAMPLES
) -> Iterator[BuildStep]:
    """Yield the steps that make one engine; raise TandemError where no tool converts it.

    name: `target` or `draft`. examples: TensorRT-LLM's examples folder, which holds the tools.
    """
    converted = engine.engine_dir.with_name(f"{engine.engine_dir.name}-checkpoint")
    tool, argv = _convert(name, engine, examples, converted)
    yield BuildStep(name, tool, argv, source=engine.checkpoint, output=converted)
    yield BuildStep(
        name,
        "trtllm-build",
        (
            "trtllm-build",
            f"--checkpoint_dir={converted}",
            f"--output_dir={engine.engine_dir}",
            *_flags(engine.build),
        ),
        source=converted,
        output=engine.engine_dir,
    )


def script(steps: Sequence[BuildStep]) -> str:
    lines = ["#!/bin/sh", "set -eu"]
    for step in steps:
        flags = [word for word in step.argv if word.startswith("--")]  # each on its own line
        program = step.argv[: len(step.argv) - len(flags)]
        command = " \\\n  ".join([shlex.join(program), *map(shlex.quote, flags)])
        lines += ["", f"# {step.name}", command]
    return "\n".join(lines) + "\n"


def _convert(
    name: str, engine: TensorRTLLMDraft, examples: Path, output: Path
) -> tuple[str, tuple[str, ...]]:
    """Return the tool that converts a checkpoint, and its command."""
    convert = engine.convert
    common = (
        f"--model_dir={engine.checkpoint}",
        f"--output_dir={output}",
        f"--dtype={convert.dtype}",
        f"--tp_size={engine.tp_size}",
        f"--pp_size={engine.pp_size}",
    )
    if convert.qformat is None:
        here = engine.checkpoint.is_dir()
        model_type = read_model_type(engine.checkpoint) if here else UNSEEN
        if model_type not in CONVERTERS:
            raise TandemError(
                f"engines.{name}.convert: no converter known for model_type '{model_type}', only "
                f"for {', '.join(CONVERTERS)}; name a qformat, because quantize.py takes more",
            )
        converter = examples / CONVERTERS[model_type] / CONVERT
        return CONVERT.name, ("python3", str(converter), *common)
    return QUANTIZE.name, (
        *("python3", str(examples / QUANTIZE), *common, f"--qformat={convert.qformat}"),
        *([f"--kv_cache_dtype={convert.kv_cache_dtype}"] if convert.kv_cache_dtype else []),
        f"--calib_size={convert.calib_size}",
        *([f"--calib_dataset={convert.calib_dataset}"] if convert.calib_dataset else []),
    )


def _flags(build: BuildSection) -> Iterator[str]:
    """Yield trtllm-build's flags for what the profile says."""
    for name, value in build:
        if name.startswith("gather_"):
            if value:
                yield f"--{name}"
        elif isinstance(value, bool):
            yield f"--{name}={'enable' if value else 'disable'}"
        elif value is not None:
            yield f"--{name}={value}"
