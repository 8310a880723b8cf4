"""Writes checkpoint folders of Llamas: real configurations, a small tokenizer and no weights."""

import json
from pathlib import Path

from checkpoints import write_tokenizer
from paths import PROFILES

# layers, hidden size, heads, KV heads, head size, MLP size, vocabulary size, positions, tied
SIZES = {
    "Llama-3.2-1B-Instruct": (16, 2048, 32, 8, 64, 8192, 128256, 131072, True),
    "Llama-3.2-3B-Instruct": (28, 3072, 24, 8, 128, 8192, 128256, 131072, True),
    "Llama-3.1-8B-Instruct": (32, 4096, 32, 8, 128, 14336, 128256, 131072, False),
    "Llama-3.1-70B-Instruct": (80, 8192, 64, 8, 128, 28672, 128256, 131072, False),
    "Llama-3.1-405B-Instruct": (126, 16384, 128, 8, 128, 53248, 128256, 131072, False),
    "Llama-2-7b-hf": (32, 4096, 32, 32, 128, 11008, 32000, 4096, False),
    "Llama-2-13b-hf": (40, 5120, 40, 40, 128, 13824, 32000, 4096, False),
}
TENSORRT_PROFILES = sorted(
    path.stem for path in PROFILES.glob("*.yaml") if "kind: tensorrtllm" in path.read_text()
)


def write_llamas(folder: Path) -> None:
    """Write one checkpoint folder per model."""
    for name, facts in SIZES.items():
        layers, width, heads, kv_heads, head, inner, vocab, positions, tied = facts
        write_tokenizer(folder / name)
        config = {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head,
            "intermediate_size": inner,
            "vocab_size": vocab,
            "max_position_embeddings": positions,
            "tie_word_embeddings": tied,
            "eos_token_id": 0,
        }
        (folder / name / "config.json").write_text(json.dumps(config))


def profile_over(models: Path, name: str, folder: Path, changes: dict[str, str]) -> Path:
    """Write a shipped profile with /models and /engines replaced by other folders.

    changes: more replacements, from text in the profile to new text.
    """
    text = (PROFILES / f"{name}.yaml").read_text()
    text = text.replace("/models/", f"{models}/").replace("/engines/", f"{folder}/engines/")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"
