"""Start the engine of the kind that a model's parameters name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tandem.contract.engine import EXCLUDE_INPUT_IN_OUTPUT
from tandem.engines.engine import Engine
from tandem.engines.errors import LoadError

KINDS = ("torch", "emulated", "llmapi")


def load_engine(model_config: dict[str, Any], folder: Path) -> Engine:
    """Build the engine; what only another kind needs is not imported. Raises LoadError.

    model_config: Triton's, parsed. folder: the model's version folder.
    """
    parameters = dict(model_config.get("parameters", {}))
    kind = parameters.pop("engine", {}).get("string_value")
    parameters.pop(EXCLUDE_INPUT_IN_OUTPUT, None)
    if kind not in KINDS:
        raise LoadError(f"parameter 'engine' is {kind!r}; known are {', '.join(KINDS)}")
    engine: Engine = import_module(f"tandem.engines.{kind}.load").load(
        {**model_config, "parameters": parameters}, folder
    )
    return engine


def excludes_input(model_config: dict[str, Any]) -> bool:
    """Whether answers leave the context out where a call does not say, which is usual.

    The parameter is named as that of NVIDIA's backend, for their clients look it up.
    """
    given = model_config.get("parameters", {}).get(EXCLUDE_INPUT_IN_OUTPUT, {})
    return bool(given.get("string_value", "true") == "true")
