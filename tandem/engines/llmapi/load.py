"""Start an llmapi engine in its own process."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tandem.contract.model_parameters import decode
from tandem.engines.errors import LoadError
from tandem.engines.llmapi.engine import LlmApiEngine
from tandem.engines.llmapi.settings import LlmApiSettings


def load(model_config: dict[str, Any], folder: Path) -> LlmApiEngine:
    """Load the checkpoint and start the engine. Raises LoadError or ParameterError."""
    settings = decode(LlmApiSettings, model_config)
    try:
        package = import_module("tensorrt_llm")
        import_module("tensorrt_llm.llmapi.llm_args")
    except ImportError as error:
        raise LoadError(
            f"can't import TensorRT-LLM: {error}; use an image that has it, or run "
            "`pip install tensorrt-llm==1.2.1 --extra-index-url https://pypi.nvidia.com`"
        ) from error
    adapters = tuple(str(folder / name) for name in settings.lora_adapters)
    return LlmApiEngine(replace(settings, lora_adapters=adapters), package)
