"""Start the kind of engine that a model's parameters select."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tandem.contract.engine import EXCLUDE_INPUT_IN_OUTPUT
from tandem.contract.model_parameters import FACTS
from tandem.engines.engine import Engine, Forwarder
from tandem.engines.errors import LoadError

KINDS = ("torch", "llamacpp", "emulated", "llmapi", "vllm", "remote")
KIND = "engine"
COMMON = {KIND, EXCLUDE_INPUT_IN_OUTPUT, FACTS}


def load_engine(model_config: dict[str, Any], folder: Path) -> Engine | Forwarder:
    """Build the engine, importing only what its kind needs. Raises LoadError.

    model_config: Triton's model config, parsed. folder: the model's version folder.
    """
    kind = model_config.get("parameters", {}).get(KIND, {}).get("string_value")
    if kind not in KINDS:
        raise LoadError(f"parameter 'engine' must be one of {', '.join(KINDS)}; got {kind!r}")
    load = import_module(f"tandem.engines.{kind}.load").load
    engine: Engine | Forwarder = load(without_common_parameters(model_config), folder)
    return engine


def without_common_parameters(model_config: dict[str, Any]) -> dict[str, Any]:
    parameters = model_config.get("parameters", {})
    own = {name: value for name, value in parameters.items() if name not in COMMON}
    return {**model_config, "parameters": own}


def excludes_input(model_config: dict[str, Any]) -> bool:
    """Whether answers omit the context by default.

    The parameter has the same name as in NVIDIA's backend, because NVIDIA's clients look it up.
    """
    parameter = model_config.get("parameters", {}).get(EXCLUDE_INPUT_IN_OUTPUT, {})
    return bool(parameter.get("string_value", "true") == "true")
