"""Remembers what made a folder, so that it is not made again."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata

from tandem.tools.trtllm.steps import BuildStep

NAME = ".tandem-build"


def is_fresh(step: BuildStep) -> bool:
    """Whether the step's output is what the step would make."""
    stamp = step.output / NAME
    return stamp.is_file() and stamp.read_text() == _stamp(step)


def forget(step: BuildStep) -> None:
    """A step begins: from now on its output is not valid."""
    (step.output / NAME).unlink(missing_ok=True)


def remember(step: BuildStep) -> None:
    """A step ended well."""
    (step.output / NAME).write_text(_stamp(step))


def _stamp(step: BuildStep) -> str:
    """A digest of the command, of TensorRT-LLM's version and of the files that the step reads."""
    files = sorted(p for p in step.source.glob("*") if p.is_file())
    read = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    said = json.dumps([step.argv, _version(), read])
    return hashlib.sha256(said.encode()).hexdigest()


def _version() -> str:
    try:
        return metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        return "none"
