"""On the torch engine, an adapter gives the same output as its merged model."""

from __future__ import annotations

import json

import pytest
import torch
from adapters import SOME, generate, write_adapters
from checkpoints import write_adapter
from engine_harness import assert_same, branch_call, prompt
from error_lines import error_line
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tandem.engines.errors import LoadError, RequestError
from tandem.engines.torch.lora import read_adapter


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def adapted(request, checkpoints, make_harness, tmp_path_factory):
    """An engine with two adapters, and three models: without an adapter, and with each merged."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters, models = write_adapters(checkpoints[request.param], folder)
    return make_harness(request.param, lora_adapters=adapters), models


def test_each_adapter_gives_the_same_output_as_its_merged_model(adapted):
    engine, models = adapted
    ids = prompt(1, 20)
    texts = [generate(model, ids, 12) for model in models]
    assert len(set(map(tuple, texts))) == 3
    for adapter, (model, text) in enumerate(zip(models, texts, strict=True)):
        assert_same(model, ids, engine.tokens(ids, 12, lora_task_id=adapter), text)


def test_a_batch_can_mix_adapters(adapted):
    engine, models = adapted
    prompts = [prompt(seed, 5 + 3 * seed) for seed in range(6)]
    pending = [engine.start(ids, 8, lora_task_id=number % 3) for number, ids in enumerate(prompts)]
    for number, (ids, call) in enumerate(zip(prompts, pending, strict=True)):
        model = models[number % 3]
        assert_same(model, ids, call.wait().tokens, generate(model, ids, 8))


def test_kv_blocks_are_not_reused_across_adapters(adapted):
    engine, models = adapted
    ids = prompt(7, 40)
    for adapter in (0, 1, 2, 1, 0):
        outcome = engine.call(ids, 12, lora_task_id=adapter, return_perf_metrics=True)
        assert_same(models[adapter], ids, outcome.tokens, generate(models[adapter], ids, 12))
    again = engine.call(ids, 12, lora_task_id=2, return_perf_metrics=True)
    assert again.last.usage.reused_blocks >= 4  # from an earlier call with the same adapter


def test_drafts_are_verified_by_the_adapted_model(adapted):
    engine, models = adapted
    ids = prompt(3, 12)
    text = generate(models[1], ids, 6)
    wrong = [*text[:3], (text[3] + 1) % 131, 5]
    assert_same(models[1], ids, engine.tokens(ids, 6, drafts=wrong, lora_task_id=1), text[:4])


def test_branches_are_drafted_by_the_adapted_model(adapted):
    engine, models = adapted
    ids, drafts = prompt(5, 12), [4, 5]
    found = engine.call(ids, **branch_call(drafts, 2, 4), lora_task_id=1).last.branches
    assert len(found.outcomes) == 6
    for (accepted, token), row in zip(found.outcomes.tolist(), found.ids.tolist(), strict=True):
        context = [*ids, *drafts[:accepted], token]
        assert_same(models[1], context, row, generate(models[1], context, 4))


def test_an_unknown_adapter_is_rejected(adapted, make_harness):
    with pytest.raises(RequestError, match=r"lora_task_id must be between 0 and 2; got 3"):
        adapted[0].start(prompt(1, 4), lora_task_id=3)
    with pytest.raises(RequestError, match="lora_task_id isn't supported by this engine"):
        make_harness().start(prompt(1, 4), lora_task_id=1)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, "use_dora True isn't supported"),
        ({"bias": "all"}, "bias 'all' isn't supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "peft_type must be LORA"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"lora_alpha": None}, "lora_alpha must be a number; got None"),
        ({"alpha_pattern": {"up(": 4}}, r"alpha_pattern 'up\(' isn't a regular expression"),
        ({"alpha_pattern": {"up_proj": "4"}}, "up_proj must be a number; got '4'"),
        ({"alpha_pattern": ["up_proj"]}, "alpha_pattern must map patterns to numbers"),
    ],
)
def test_unsupported_adapter_kinds_are_rejected(make_harness, checkpoints, tmp_path, config, words):
    model = AutoModelForCausalLM.from_pretrained(checkpoints["llama"])
    write_adapter(tmp_path, model, seed=1, targets=SOME, **config)
    with pytest.raises(LoadError, match=words):
        make_harness(lora_adapters=(str(tmp_path),))


@pytest.mark.parametrize(
    ("key", "shape", "words"),
    [
        ("model.layers.0.mlp.up_proj.lora_A.weight", [4, 47], "doesn't fit the checkpoint"),
        ("model.layers.9.mlp.up_proj.lora_A.weight", [4, 48], "layers.9.* isn't supported"),
        ("lm_head.lora_A.weight", [4, 48], "lm_head.* isn't supported"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_rejected(make_harness, tmp_path, key, shape, words):
    save_file(
        {f"base_model.model.{key}": torch.ones(shape)}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(LoadError, match=words):
        make_harness(lora_adapters=(str(tmp_path),))


@pytest.mark.parametrize(
    ("down", "up", "words"),
    [
        (torch.ones(4, 48), torch.ones(96, 3), "up_proj doesn't fit the checkpoint"),
        (torch.ones(0, 48), torch.ones(96, 0), "up_proj doesn't fit the checkpoint"),
        (torch.ones(48), torch.ones(96), "up_proj doesn't fit the checkpoint"),
        (torch.ones(4, 48), torch.full((96, 4), torch.nan), "values that aren't finite"),
    ],
)
def test_an_adapter_that_would_fail_in_a_batch_is_rejected(make_harness, tmp_path, down, up, words):
    layer = "base_model.model.model.layers.0.mlp.up_proj"
    tensors = {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(LoadError, match=words):
        make_harness(lora_adapters=(str(tmp_path),))


def test_an_adapter_can_be_checked_without_the_models_weights(checkpoints, tmp_path):
    config = AutoConfig.from_pretrained(checkpoints["llama"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    write_adapter(tmp_path, model, seed=1, targets=SOME)
    assert len(read_adapter(tmp_path, model)) == len(SOME) * config.num_hidden_layers


@pytest.mark.parametrize("content", [b"", b"not safetensors"])
def test_a_damaged_adapter_is_reported_in_one_line(make_harness, tmp_path, content):
    (tmp_path / "adapter_model.safetensors").write_bytes(content)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(LoadError, match="can't be read"):
        make_harness(lora_adapters=(str(tmp_path),))


def test_an_adapter_without_weights_is_rejected(make_harness, tmp_path):
    save_file({}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(LoadError, match="has no weights"):
        make_harness(lora_adapters=(str(tmp_path),))


def test_a_missing_adapter_is_reported_in_one_line(make_harness, tmp_path):
    absent = str(tmp_path / "nowhere")
    line = error_line(LoadError, make_harness, lora_adapters=(absent,))
    assert f"LoRA adapter '{absent}': can't be read" in line
