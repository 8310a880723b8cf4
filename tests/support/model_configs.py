"""The arguments with which Triton starts a Python model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def model_config(parameters: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return a model's configuration. more: other fields."""
    texts = {name: {"string_value": value} for name, value in parameters.items()}
    return {"name": "model", "parameters": texts} | more


def start_arguments(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the arguments of `initialize`. folder: the model's folder."""
    return {
        "model_name": config["name"],
        "model_instance_name": f"{config['name']}_0",
        "model_config": json.dumps(config),
        "model_repository": str(folder),
        "model_version": "1",
    }
