"""The demo pair loads, shares a tokenizer, and has the documented sizes."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

DEMO = Path(__file__).parents[2] / "tandem" / "demo"
MODELS = ("target", "draft")
SOURCE = 'def f(x):\n    """Säge 木."""\n    if x:\n\n        return [1, 22]  # done\n'


def read_prompts():
    return [json.loads(line) for line in (DEMO / "prompts.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("folder", ["tokenizer", *MODELS])
def test_every_folder_has_the_same_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (DEMO / folder / name).read_bytes() == (DEMO / "tokenizer" / name).read_bytes()


def test_decoding_restores_the_text_and_no_tokens_are_added():
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode(SOURCE).ids
    assert tokenizer.decode(ids) == SOURCE
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert 0 not in ids


def test_runs_of_spaces_and_newlines_are_one_token_each():
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer" / "tokenizer.json"))
    for run in ("\n", "\n\n", "\n\n\n", *(" " * 4 * n for n in range(1, 6))):
        assert len(tokenizer.encode(f"x{run}y").ids) == 3


def test_auto_tokenizer_gives_the_same_ids_as_the_tokenizers_library():
    transformers = pytest.importorskip("transformers")
    auto = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    plain = Tokenizer.from_file(str(DEMO / "tokenizer" / "tokenizer.json"))
    assert auto(SOURCE)["input_ids"] == plain.encode(SOURCE).ids
    assert (auto.eos_token, auto.pad_token, auto.bos_token) == ("<|endoftext|>",) * 2 + (None,)
    assert auto.decode(auto(SOURCE)["input_ids"]) == SOURCE


@pytest.mark.parametrize("role", MODELS)
def test_the_shipped_models_load_and_share_the_vocabulary(role):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # The stored bfloat16 crashes the process on virtual machines that report AMX without having it.
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / role, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(DEMO / role / "tokenizer.json"))
    assert model.config.vocab_size == tokenizer.get_vocab_size()
    assert model.config.max_position_embeddings >= 2048
    assert model.generation_config.eos_token_id == 0
    ids = torch.tensor([tokenizer.encode("import os\nimport ").ids])
    assert torch.isfinite(model(ids).logits).all()


def test_all_weights_take_less_than_34_megabytes():
    assert sum((DEMO / role / "model.safetensors").stat().st_size for role in MODELS) <= 34e6


def test_prompts_are_distinct_and_have_the_documented_length():
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer" / "tokenizer.json"))
    prompts = read_prompts()
    assert len(prompts) >= 50
    assert len({p["id"] for p in prompts}) == len({p["prompt"] for p in prompts}) == len(prompts)
    for prompt in prompts:
        assert set(prompt) == {"id", "kind", "prompt"}
        assert 20 <= len(tokenizer.encode(prompt["prompt"]).ids) <= 200, prompt["id"]
