"""Writes small checkpoints with random weights, and a tokenizer for them."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
# Training text of the tokenizers. If it changes, the outputs of all checkpoints change.
TEXT = (Path(__file__).parents[1] / "data" / "tokenizer_text.txt").read_text()


def write_tokenizer(folder: Path, *, size: int = 300) -> int:
    """Write a byte-level BPE tokenizer, and return its vocabulary size."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TRAINED[size] = TRAINED.get(size) or _trained(size)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "pad_token": END}))
    return tokenizer.get_vocab_size()


TRAINED: dict[int, Tokenizer] = {}  # by size


def _trained(size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    return tokenizer


def write_pair(folder: Path, tokenizer: Path | None = None) -> None:
    """Write the folders ``target``, ``draft`` and ``tokenizer`` of the demo.

    The target's outputs differ between prompts and soon become repetitive, so that prompt lookup
    finds drafts. The draft consists of the target's first layer. The second layer has little
    effect, so the draft agrees with about 80% of the tokens.

    tokenizer: a tokenizer folder to copy; by default, a new tokenizer is trained.
    """
    if tokenizer:
        shutil.copytree(tokenizer, folder / "tokenizer")
        size = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    else:
        size = write_tokenizer(folder / "tokenizer")
    _write_llama(folder / "target", size, layers=2)
    _write_llama(folder / "draft", size, layers=1)


# Sizes of a small Llama, for its config.json.
LLAMA = {
    "max_position_embeddings": 4096,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}


def write_empty(folder: Path, vocab_size: int, **config: object) -> None:
    """Write a checkpoint without weights, which is enough for the checks of a profile."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"vocab_size": vocab_size, "max_position_embeddings": 1024, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(facts | config))
    save_file({}, folder / "model.safetensors")


def _write_llama(folder: Path, vocab_size: int, *, layers: int) -> None:
    """Write a random Llama. Its first layers don't depend on the number of layers."""
    rng = np.random.default_rng(1)
    size, heads, kv_heads, head = 64, 4, 2, 16  # as in LLAMA

    def random(*shape: int, scale: float = 0.12) -> np.ndarray:
        return rng.normal(0, scale, shape).astype(np.float32)

    weights = {"model.embed_tokens.weight": random(vocab_size, size)}
    for layer in range(layers):
        out = 0.12 if layer == 0 else 0.03
        made = {
            "self_attn.q_proj": random(heads * head, size),
            "self_attn.k_proj": random(kv_heads * head, size),
            "self_attn.v_proj": random(kv_heads * head, size),
            "self_attn.o_proj": random(size, heads * head, scale=out),
            "mlp.gate_proj": random(2 * size, size),
            "mlp.up_proj": random(2 * size, size),
            "mlp.down_proj": random(size, 2 * size, scale=out),
            "input_layernorm": np.ones(size, np.float32),
            "post_attention_layernorm": np.ones(size, np.float32),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": array for name, array in made.items()}
    # Large logits, so that only a few tokens are likely.
    weights["model.norm.weight"] = np.full(size, 5, np.float32)
    write_empty(folder, vocab_size, **LLAMA | {"num_hidden_layers": layers})
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "generation_config.json").write_text('{"eos_token_id": 0, "pad_token_id": 0}')


def write_adapter_of(checkpoint: Path, folder: Path, *targets: str, **config) -> None:
    """Write a random LoRA adapter of a checkpoint, which may have no weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint))
    write_adapter(folder, model, seed=1, targets=targets or ("q_proj",), **config)


def write_adapter(folder: Path, model, *, seed: int, targets: tuple[str, ...], **config) -> None:
    """Write a random LoRA adapter of a model in peft's format, and merge it into the model.

    targets: endings of the adapted layers' names. config: changes to adapter_config.json.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    rank, alpha = 4, 8
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with torch.no_grad():
        for name, layer in model.named_modules():
            if not name.endswith(targets):
                continue
            outputs, inputs = layer.weight.shape
            down = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            up = torch.randn(outputs, rank, generator=generator) / 4
            tensors[f"base_model.model.{name}.lora_A.weight"] = down.numpy()
            tensors[f"base_model.model.{name}.lora_B.weight"] = up.numpy()
            layer.weight += alpha / rank * up @ down
    save_file(tensors, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    facts["target_modules"] = list(targets)
    (folder / "adapter_config.json").write_text(json.dumps(facts | config))
