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
from tandem.engines.lora_files import require_safetensors


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
    drafts = settings.speculative_config or {}
    for name in (settings.model, *map(drafts.get, ("speculative_model", "speculative_model_dir"))):
        if name is not None and Path(name).is_dir():  # otherwise, a name on the Hub
            require_safetensors(Path(name))
    adapters = tuple(str(folder / name) for name in settings.lora_adapters)
    return LlmApiEngine(replace(settings, lora_adapters=adapters), package)
