"""LoRA adapters that vLLM applies by itself. Pure.

Facts are from vLLM 0.27.1: `LoRAConfig` in vllm/config/lora.py and `PEFTHelper` in
vllm/lora/peft_helper.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.engines.checkpoint_files import uniform_rank
from tandem.engines.errors import LoadError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values of `max_lora_rank`


def lora_arguments(folders: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `EngineArgs()` for these adapters. Raises LoadError.

    One batch can then use all of these adapters.
    """
    if not folders:
        return {}
    rank = max(max_rank(Path(folder)) for folder in folders)
    return {"enable_lora": True, "max_loras": len(folders), "max_lora_rank": rank}


def max_rank(folder: Path) -> int:
    """Return the smallest `max_lora_rank` that an adapter fits into.

    Raises LoadError if vLLM can't apply the adapter exactly.
    """
    rank = uniform_rank(folder, "vLLM")
    if rank > RANKS[-1]:
        raise LoadError(f"LoRA adapter '{folder}': r must be at most {RANKS[-1]}; got {rank}")
    return next(supported for supported in RANKS if rank <= supported)
