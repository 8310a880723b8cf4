"""LoRA adapters (arXiv:2106.09685) in the format of Hugging Face's peft, selected per sequence.

A forward pass computes the base model for all tokens. Each adapted layer then adds B(A(x)) for the
tokens of the sequences that use an adapter, so one batch may mix adapters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from tandem.engines.checkpoint_files import WEIGHTS_FILE, read_adapter_config
from tandem.engines.errors import LoadError

PREFIX = "base_model.model."
Map = Callable[..., torch.Tensor]


class LowRank(NamedTuple):
    """The two matrices of an adapted layer. `up` includes the adapter's scale."""

    down: torch.Tensor  # A [rank, in]
    up: torch.Tensor  # B [out, rank]


class Adapters:
    """All adapters of an engine, numbered from 1, and the tokens of this pass that use them."""

    def __init__(self, model: nn.Module, folders: Sequence[Path]) -> None:
        """Wrap the model's adapted layers. Raises LoadError."""
        self._spans: list[tuple[int, int, int]] = []
        for number, folder in enumerate(folders, 1):
            for name, weights in read_adapter(folder, model).items():
                parent, _, child = name.rpartition(".")
                layer = model.get_submodule(name)
                if not isinstance(layer, LoraLinear):
                    layer = LoraLinear(layer, self)
                    setattr(model.get_submodule(parent), child, layer)
                layer.adapters[number] = weights

    def use(self, counts: Sequence[tuple[int, int]]) -> None:
        """Set the adapters of the next pass's tokens.

        counts: (adapter, number of tokens) pairs; adapter 0: none.
        """
        self._spans, start = [], 0
        for adapter, count in counts:
            if adapter:
                self._spans.append((adapter, start, start + count))
            start += count

    def add(self, out: torch.Tensor, rows: torch.Tensor, adapters: Mapping[int, LowRank]) -> None:
        """Add the adapters' contribution to a layer's output [..., tokens, out], in place."""
        for adapter, start, end in self._spans:
            if adapter in adapters:
                down, up = adapters[adapter]
                out[..., start:end, :] += F.linear(F.linear(rows[..., start:end, :], down), up)


class LoraLinear(nn.Module):
    """A linear layer with adapters."""

    def __init__(self, base: Any, owner: Adapters) -> None:
        super().__init__()
        self.base = base
        self.adapters: dict[int, LowRank] = {}
        self.owner = owner

    @property
    def weight(self) -> Any:
        return self.base.weight

    @property
    def bias(self) -> Any:
        return self.base.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(rows)
        self.owner.add(out, rows, self.adapters)
        return out


def with_adapters(base: Map, layers: Sequence[Any]) -> Map:
    """Add the adapters of `layers` to `base`, which joins these layers by concatenating outputs."""
    owner = next((layer.owner for layer in layers if isinstance(layer, LoraLinear)), None)
    if owner is None:
        return base
    numbers = {n for layer in layers if isinstance(layer, LoraLinear) for n in layer.adapters}
    joined = {}
    for number in numbers:
        parts = [_part(layer, number) for layer in layers]
        joined[number] = LowRank(
            torch.cat([part.down for part in parts]),
            torch.block_diag(*[part.up for part in parts]),  # type: ignore[no-untyped-call]
        )

    def forward(rows: torch.Tensor) -> torch.Tensor:
        out = base(rows)
        owner.add(out, rows, joined)
        return out

    return forward


def _part(layer: Any, number: int) -> LowRank:
    """Return an adapter's matrices for one layer, with rank 0 if the adapter lacks the layer."""
    if isinstance(layer, LoraLinear) and number in layer.adapters:
        return layer.adapters[number]
    outputs, inputs = layer.weight.shape
    return LowRank(layer.weight.new_empty(0, inputs), layer.weight.new_empty(outputs, 0))


def without_weights(config: Any, *, trust_remote_code: bool) -> nn.Module:
    """Return the model of a transformers configuration, to check adapters against it."""
    from_config: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model: nn.Module = from_config(config, trust_remote_code=trust_remote_code)
    return model


def read_adapter(folder: Path, model: nn.Module) -> dict[str, LowRank]:
    """Return an adapter's matrices, keyed by the name of the model's layer.

    model: may be on the device `meta`, to check the adapter only. Raises LoadError.
    """
    config = read_adapter_config(folder)
    try:
        tensors = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"LoRA adapter '{folder}': can't be read: {error}") from error
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        match = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])\.weight", key)
        layer = _layer(model, match[1]) if match else None
        if match is None or layer is None:
            raise LoadError(
                f"LoRA adapter '{folder}': {key} isn't supported; only linear layers in the "
                "model's blocks can be adapted"
            )
        found.setdefault(match[1], {})[match[2]] = tensor.to(layer.weight.dtype)
    if not found:
        raise LoadError(f"LoRA adapter '{folder}': {WEIGHTS_FILE} has no weights")
    adapter = {}
    for name, matrices in found.items():
        weight = _layer(model, name).weight
        (outputs, inputs), missing = weight.shape, weight.new_empty(0)
        down, up = matrices.get("A", missing), matrices.get("B", missing)
        rank = len(down)
        if not rank or (down.shape, up.shape) != ((rank, inputs), (outputs, rank)):
            raise LoadError(f"LoRA adapter '{folder}': {name} doesn't fit the checkpoint")
        up *= _scale(config, name, rank)
        if not (down.isfinite().all() and up.isfinite().all()):
            raise LoadError(f"LoRA adapter '{folder}': {name} has values that aren't finite")
        adapter[name] = LowRank(down.to(weight.device), up.to(weight.device))
    return adapter


def _layer(model: nn.Module, name: str) -> Any:
    """Return the linear layer with this name inside the model's blocks, or None."""
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        return None
    layer = layer.base if isinstance(layer, LoraLinear) else layer
    is_block = re.search(r"\.\d+\.", name) is not None
    return layer if is_block and type(layer) is nn.Linear else None


def _scale(config: Mapping[str, Any], name: str, rank: int) -> float:
    """Return the scale alpha / rank as peft computes it (peft/tuners/lora/layer.py)."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", name):
            alpha = value
            break
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))
