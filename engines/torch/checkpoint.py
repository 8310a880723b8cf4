"""Load a Hugging Face checkpoint for `PackedModel`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from tandem.engines.errors import LoadError, first_line
from tandem.engines.torch import attention
from tandem.engines.torch.memory import require_memory
from tandem.engines.torch.settings import TorchSettings

Loader: TypeAlias = Callable[[TorchSettings, Path], Any]  # as `load_checkpoint`

AttentionInterface.register(attention.NAME, attention.packed_attention)
AttentionInterface.register(attention.SHAPES_NAME, attention.record_shapes)


def load_checkpoint(settings: TorchSettings, path: Path) -> Any:
    """Return transformers' causal LM, with our attention. Raises LoadError."""
    if not (path / "config.json").is_file():
        raise LoadError(f"checkpoint '{path}' has no config.json")
    device = device_of(settings.device)
    dtype = dtype_of(settings.dtype, device)
    if device.type == "cuda":
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        require_memory(config, settings, device, _loaded_dtype(dtype, config))
    model = _load(path, dtype, device)
    _check_length(model.config, settings.max_seq_len)
    return model


def device_of(name: str, gpus: int | None = None) -> torch.device:
    """Return the device that a setting names. Raises LoadError.

    gpus: how many there are; None: as many as PyTorch sees.
    """
    found = torch.cuda.device_count() if gpus is None else gpus
    if name == "auto":
        name = "cuda" if found else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadError(f"device '{name}' is unknown; use cpu, cuda, cuda:N or auto") from error
    if device.type not in {"cpu", "cuda"}:
        raise LoadError(f"device '{name}' is none for this engine; use cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and not found:
        raise LoadError(f"device '{name}': PyTorch sees no CUDA device here; use cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= found:
        raise LoadError(
            f"device '{name}': PyTorch sees {found} CUDA device{'s' * (found > 1)} here, "
            f"{', '.join(f'cuda:{n}' for n in range(found))}"
        )
    return device


def dtype_of(name: str, device: torch.device) -> torch.dtype | str:
    """Return the type that a setting names, or `auto`: the checkpoint's. Raises LoadError."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise LoadError(f"dtype '{name}' is unknown; use {', '.join(known)} or auto")
    return known[name]


def _loaded_dtype(dtype: torch.dtype | str, config: Any) -> torch.dtype:
    """What transformers makes of `auto`."""
    if isinstance(dtype, torch.dtype):
        return dtype
    own = config.dtype
    return own if isinstance(own, torch.dtype) else torch.float32


def _load(path: Path, dtype: torch.dtype | str, device: torch.device) -> Any:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would go to the log
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention.NAME, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"checkpoint '{path}' cannot be loaded: {first_line(error)}") from error
    return model.to(device).eval().requires_grad_(False)


def _check_length(config: Any, max_seq_len: int) -> None:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and max_seq_len > longest:
        raise LoadError(
            f"max_seq_len ({max_seq_len}) exceeds the checkpoint's max_position_embeddings "
            f"({longest})"
        )
