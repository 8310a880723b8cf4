"""LoRA adapters that TensorRT-LLM applies by itself.

Facts are from TensorRT-LLM: `LoraConfig` in tensorrt_llm/lora_helper.py and `LoraManager` in
tensorrt_llm/lora_manager.py. Later versions have both in tensorrt_llm/_torch/peft/lora.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packaging.version import Version
from transformers import AutoConfig

from tandem.engines.checkpoint_files import uniform_rank
from tandem.engines.errors import LoadError, first_line
from tandem.engines.llmapi.settings import LlmApiSettings
from tandem.engines.torch.lora import read_adapter, without_weights

# The first release candidate that surely has pull requests 8279, 12661 and 13005. Without them,
# CUDA graphs don't apply adapters, and a step with draft tokens fails.
COMPLETE = "1.3.0rc15"


def lora_arguments(settings: LlmApiSettings, package: Any) -> dict[str, Any]:
    """Return the arguments of `LLM()` for the adapters. package: the module `tensorrt_llm`.

    All adapters stay in GPU memory. Raises LoadError if this version can't apply one.
    """
    is_complete = Version(package.__version__) >= Version(COMPLETE)
    if settings.drafts_itself and not is_complete:
        raise LoadError(
            f"lora_adapters: TensorRT-LLM {package.__version__} can't combine adapters with "
            f"speculation; install {COMPLETE} or later, or remove the speculation"
        )
    if (settings.llm_args or {}).get("cuda_graph_config") is not None and not is_complete:
        raise LoadError(
            f"llm_args.cuda_graph_config: CUDA graphs of TensorRT-LLM {package.__version__} ignore "
            f"LoRA adapters; remove it, or install {COMPLETE} or later"
        )
    folders = [Path(folder) for folder in settings.lora_adapters]
    api = package.llmapi.llm_args
    config = api.LoraConfig(
        lora_target_modules=_target_modules(folders, settings, api),
        max_lora_rank=max(uniform_rank(folder, "TensorRT-LLM") for folder in folders),
        max_loras=len(folders),
        max_cpu_loras=len(folders),
    )
    return {"lora_config": config} | ({} if is_complete else {"cuda_graph_config": None})


def _target_modules(folders: list[Path], settings: LlmApiSettings, api: Any) -> list[str]:
    """Return TensorRT-LLM's names of the layers that the adapters change.

    TensorRT-LLM ignores matrices of other layers, and accepts matrices that are too large. Raises
    LoadError if an adapter doesn't fit the model, or if TensorRT-LLM doesn't know a layer.
    """
    remote = settings.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(settings.model, trust_remote_code=remote)
        model = without_weights(config, trust_remote_code=remote)
    except (OSError, ValueError) as error:
        raise LoadError(f"can't check the LoRA adapters: {first_line(error)}") from error
    known = {layer: name for name, layer in api.get_default_trtllm_modules_to_hf_modules().items()}
    targets = set()
    for folder in folders:
        for name in read_adapter(folder, model):
            _, parent, layer = name.rsplit(".", 2)
            target = known.get(f"{parent}.{layer}", known.get(layer))
            if target is None:
                raise LoadError(f"LoRA adapter '{folder}': {name} isn't supported by TensorRT-LLM")
            targets.add(target)
    return sorted(targets)
