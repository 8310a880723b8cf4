"""LoRA adapters on the vLLM engine give the output of the merged models."""

import pytest
from adapters import generate, write_adapters
from engine_harness import assert_same, prompt
from vllm_engine import start_vllm, write_checkpoint

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """An engine with two adapters, and the models without an adapter and merged with each."""
    folder = tmp_path_factory.mktemp("adapted")
    write_checkpoint(folder)
    adapters, models = write_adapters(folder, folder)
    harness = start_vllm(folder, lora_adapters=adapters)
    yield harness, models
    harness.engine.close()


def test_a_batch_with_several_adapters_equals_the_merged_models(adapted):
    engine, models = adapted
    prompts = [prompt(seed, 5 + 3 * seed) for seed in range(9)]
    pending = [engine.start(ids, 16, lora_task_id=number % 3) for number, ids in enumerate(prompts)]
    for number, (ids, call) in enumerate(zip(prompts, pending, strict=True)):
        model = models[number % 3]
        assert_same(model, ids, call.wait().tokens, generate(model, ids, 16))


def test_drafts_in_a_mixed_batch_are_verified_by_the_adapted_model(adapted):
    engine, models = adapted
    ids = prompt(3, 12)
    texts = [generate(model, ids, 6) for model in models]
    drafts = [[*text[:3], (text[3] + 1) % 131, 5] for text in texts]
    pending = [
        engine.start(ids, 6, drafts=draft, lora_task_id=adapter)
        for adapter, draft in enumerate(drafts)
    ]
    for model, text, call in zip(models, texts, pending, strict=True):
        assert_same(model, ids, call.wait().tokens, text[:4])


def test_kv_blocks_are_not_reused_across_adapters(adapted):
    engine, models = adapted
    ids = prompt(7, 100)
    for adapter in (0, 1, 2, 1, 0):
        text = generate(models[adapter], ids, 12)
        assert_same(models[adapter], ids, engine.tokens(ids, 12, lora_task_id=adapter), text)
    again = engine.call(ids, 12, lora_task_id=2)
    assert again.last.usage.reused_blocks == 3  # from an earlier call with the same adapter
