"""The shapes of the two models, and their Hugging Face folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.demo_models.corpus import DEMO, TOKENIZER, VOCABULARY_SIZE

Role = Literal["target", "draft"]

# A single key-value head keeps the KV cache small. Copying the cache is a large part of the cost of
# a verification.
SHAPES: dict[Role, dict[str, Any]] = {
    "target": {
        "hidden_size": 320,
        "intermediate_size": 832,
        "num_hidden_layers": 13,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
    "draft": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
    },
}
MAX_POSITIONS = 2048
END_ID = 0


def new_model(role: Role, seed: int = 0) -> Any:
    """Return a new model; weights that write to the residual stream are zero."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        **SHAPES[role],
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    return model


def save_checkpoint(model: Any, role: Role) -> Path:
    """Write the weights (bfloat16), configs and tokenizer to `tandem/demo/<role>/`."""
    folder = DEMO / role
    ship = new_model(role).to(torch.bfloat16)
    ship.load_state_dict(model.state_dict())
    ship.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=END_ID)
    ship.save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    return folder


def load_checkpoint(role: Role, dtype: torch.dtype = torch.float32) -> Any:
    """Return a shipped model in evaluation mode."""
    return LlamaForCausalLM.from_pretrained(DEMO / role, dtype=dtype).eval()
