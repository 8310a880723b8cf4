"""Greedy output equals transformers' for every split into calls, chunks and batches."""

from __future__ import annotations

import pytest
import torch
from engine_harness import assert_same, prompt

ARCHITECTURES = ["llama", "gpt2", "qwen2", "mistral", "paged qwen2", "paged mistral"]


def generate(model, ids: list[int], new: int) -> list[int]:
    """Hugging Face's greedy text; no end token."""
    row = torch.tensor([ids])
    output = model.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_output_equals_hugging_face(make_harness, reference, name):
    engine = make_harness(name)
    for seed, length in enumerate([1, 2, 7, 40]):
        ids = prompt(seed, length)
        assert_same(
            reference(name), ids, engine.tokens(ids, 30), generate(reference(name), ids, 30)
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunked_prefill_gives_the_same_output(make_harness, reference, name):
    engine = make_harness(name, max_batch_tokens=9)
    ids = prompt(3, 50)
    assert_same(reference(name), ids, engine.tokens(ids, 12), generate(reference(name), ids, 12))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_concurrent_calls_equal_sequential_calls(make_harness, reference, name):
    engine = make_harness(name, max_batch_tokens=40)
    prompts = [prompt(seed, 3 + 5 * seed) for seed in range(10)]
    pending = [engine.start(ids, 10 + seed) for seed, ids in enumerate(prompts)]
    for seed, (ids, call) in enumerate(zip(prompts, pending, strict=True)):
        want = generate(reference(name), ids, 10 + seed)
        assert_same(reference(name), ids, call.wait().tokens, want)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("draft_len", [1, 8])
def test_output_with_any_drafts_equals_hugging_face(make_harness, reference, name, draft_len):
    engine = make_harness(name)
    ids = prompt(11, 20)
    want = generate(reference(name), ids, 40)
    text: list[int] = []
    while len(text) < 30:
        right = len(text) % (draft_len + 1)
        drafts = want[len(text) : len(text) + draft_len]
        drafts = [t if i < right else (t + 1) % 100 for i, t in enumerate(drafts)]
        emitted = engine.tokens(ids + text, draft_len + 1, drafts=drafts)
        assert len(emitted) >= 1
        text += emitted
    assert_same(reference(name), ids, text, want[: len(text)])


def test_output_is_empty_if_the_first_token_is_an_end_id(llama):
    ids = prompt(1, 9)
    first = llama.tokens(ids, 1)[0]
    assert llama.tokens(ids, 20, end_id=first) == []
