"""Loads and calls a tokenizer model like Triton's Python backend, but without Triton."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import triton_python_backend_utils as pb_utils
from tokenizer_kinds import byte_level, write

from tandem.contract.model_parameters import encode


def load(module: str, name: str, settings: Any, repository: Any) -> Any:
    """Return an initialized model, with a tokenizer in the model's version folder."""
    write(byte_level(), repository / "1" / "tokenizer")
    model = getattr(importlib.import_module(module), name)()
    parameters = {key: {"string_value": value} for key, value in encode(settings).items()}
    model.initialize(
        {
            "model_config": json.dumps({"name": "tokenizer", "parameters": parameters}),
            "model_repository": str(repository),
            "model_version": "1",
        }
    )
    return model


def request(wanted: list[str], **inputs: Any) -> Any:
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return SimpleNamespace(inputs=lambda: tensors, requested_output_names=lambda: wanted)


def arrays(response: Any) -> dict[str, Any]:
    assert not response.has_error()
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def error(response: Any) -> tuple[str, str]:
    assert response.output_tensors() == []
    return response.error().message(), response.error().code()
