"""LoRA adapters that vLLM applies by itself. Pure.

Facts are from vLLM 0.27.1: `LoRAConfig` in vllm/config/lora.py and `PEFTHelper` in
vllm/lora/peft_helper.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.engines.errors import LoadError
from tandem.engines.lora_files import read_config

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values of `max_lora_rank`
# Keys of an adapter's configuration that vLLM ignores.
IGNORED = ("rank_pattern", "alpha_pattern")


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
    config = read_config(folder)
    for name in IGNORED:
        if config.get(name):
            raise LoadError(f"LoRA adapter '{folder}': {name} isn't supported by vLLM")
    rank = config.get("r")
    if not isinstance(rank, int) or not 0 < rank <= RANKS[-1]:
        raise LoadError(
            f"LoRA adapter '{folder}': r must be between 1 and {RANKS[-1]}; got {rank!r}"
        )
    return next(most for most in RANKS if rank <= most)
