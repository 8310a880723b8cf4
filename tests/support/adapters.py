"""Two LoRA adapters, and the models merged with them as a reference."""

from pathlib import Path
from typing import Any

import torch
from checkpoints import write_adapter
from transformers import AutoModelForCausalLM

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SOME = ("v_proj", "up_proj")


def write_adapters(checkpoint: Path, folder: Path) -> tuple[tuple[str, str], list[Any]]:
    """Write two adapters of a checkpoint into a folder.

    Return their folders, and the models without an adapter and merged with each.
    """
    models = [AutoModelForCausalLM.from_pretrained(checkpoint) for _ in range(3)]
    write_adapter(folder / "a", models[1], seed=1, targets=ALL)
    write_adapter(folder / "b", models[2], seed=2, targets=SOME)
    return (str(folder / "a"), str(folder / "b")), models


def generate(model: Any, ids: list[int], new: int) -> list[int]:
    """Return the ids of a model's greedy continuation."""
    row = torch.tensor([ids])
    asked = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(row, attention_mask=torch.ones_like(row), **asked)[0, len(ids) :].tolist()
