"""Writes folders that stand for inflated checkpoints, and loads them in engines.

A folder contains the parts of a checkpoint that other programs read: config, tokenizer, and a link
to the small weights. The large weights exist only in the engine, on its device.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.inflated.inflation import inflate, inflated_config
from benchmarks.inflated.shapes import LlamaShape
from tandem.engines.torch.checkpoint import device_of, dtype_of, load_checkpoint, require_memory
from tandem.engines.torch.settings import TorchSettings

_COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
_BASE = "inflated_from"  # key in config.json for the small checkpoint's folder


def write_folder(base: Path, shape: LlamaShape, folder: Path) -> Path:
    """Write a folder for the checkpoint in `base`, inflated to a shape. Raises ShapeError."""
    config = inflated_config(LlamaConfig.from_pretrained(base), shape)
    setattr(config, _BASE, str(base.resolve()))
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    for name in _COPIED:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)
    for weights in base.glob("*.safetensors"):
        (folder / weights.name).symlink_to(weights.resolve())
    return folder


def load_inflated(settings: TorchSettings, path: Path) -> Any:
    """Load an inflated checkpoint from its folder; a loader for `PackedModel`. Raises LoadError."""
    config = LlamaConfig.from_pretrained(path)
    small = replace(settings, device="cpu", dtype="float32")
    base = load_checkpoint(small, Path(getattr(config, _BASE)))
    device, dtype = device_of(settings.device), weight_dtype(settings)
    require_memory(config, settings, device, dtype)
    return inflate(base, config, device, dtype)


def weight_dtype(settings: TorchSettings) -> torch.dtype:
    """Return the weights' type, which is bfloat16 if the engine would use the checkpoint's type."""
    dtype = dtype_of(settings.dtype, device_of(settings.device))
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16


def plant(models: Path) -> None:
    """Change a rendered repository so that both engines load inflated checkpoints."""
    here = Path(__file__).resolve().parent
    for name in ("draft", "target"):
        version = models / name / "1"
        (version / "model.py").rename(version / "real_model.py")
        shutil.copyfile(here / "engine.py", version / "model.py")
        (version / "checkout").write_text(str(here.parents[1]))
