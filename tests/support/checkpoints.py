"""Small checkpoints of random weights, and their tokenizer, made when a test needs them."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TEXT = Path(__file__).read_text()  # any text with enough pairs to merge


def write_tokenizer(folder: Path, *, size: int = 300) -> int:
    """Write a byte-level BPE tokenizer; return its number of tokens."""
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


def write_pair(folder: Path) -> None:
    """Write ``target``, ``draft`` and ``tokenizer`` as the demo has them.

    Their answers differ between prompts. The draft is the target's first layer, and the second one
    has little effect, so the draft agrees with about 70% of the tokens.
    """
    import torch

    size = write_tokenizer(folder / "tokenizer")
    target, draft = _llama(size, layers=2), _llama(size, layers=1)
    second = target.model.layers[1]
    with torch.no_grad():
        second.mlp.down_proj.weight.mul_(0.2)
        second.self_attn.o_proj.weight.mul_(0.2)
    draft.load_state_dict(target.state_dict(), strict=False)
    target.save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")


def write_gpt2(folder: Path, vocab_size: int, *, layers: int) -> None:
    """Write a random GPT-2, whose positions are learnt."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(layers)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=64,
        n_layer=layers,
        n_head=4,
        n_positions=256,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)


def write_qwen2(folder: Path, vocab_size: int, *, layers: int) -> None:
    """Write a random Qwen2, whose attention has biases."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(layers)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def write_empty(folder: Path, vocab_size: int, **config: object) -> None:
    """Write what a profile's checks read of a checkpoint; nothing that could be loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"vocab_size": vocab_size, "max_position_embeddings": 1024, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(facts | config))
    (folder / "model.safetensors").touch()


def _llama(vocab_size: int, *, layers: int):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def write_adapter(folder: Path, model, *, seed: int, targets: tuple[str, ...], **config) -> None:
    """Write a random LoRA adapter of a model in peft's format, and merge it into the model.

    targets: endings of the adapted layers' names. config: changes to adapter_config.json.
    """
    import torch
    from safetensors.torch import save_file

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
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
            layer.weight += alpha / rank * up @ down
    save_file(tensors, folder / "adapter_model.safetensors")
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(facts | config))
