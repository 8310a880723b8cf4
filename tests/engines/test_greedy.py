"""Greedy output equals the output of transformers, regardless of drafts, chunks and batches."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from engine_harness import GREEDY, assert_same, prompt

from tandem.engines.engine import SamplingParams

ARCHITECTURES = ["llama", "gpt2", "qwen2", "mistral"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def engine(make_harness, name):
    return make_harness(name, max_batch_tokens=40)


@pytest.fixture(scope="module")
def generate(reference):
    """Return a function that generates greedy output with transformers, ignoring end ids."""

    @cache
    def generated(name, ids, new):
        row = torch.tensor([ids])
        output = reference(name).generate(
            row,
            attention_mask=torch.ones_like(row),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return output[0, len(ids) :].tolist()

    return lambda name, ids, new: generated(name.rpartition(" ")[2], tuple(ids), new)


@pytest.mark.parametrize("length", [1, 40, 90])
def test_greedy_output_equals_hugging_face(engine, reference, generate, name, length):
    """The longest prompt exceeds max_batch_tokens, so it is computed in chunks."""
    ids = prompt(length, length)
    assert_same(reference(name), ids, engine.tokens(ids, 12), generate(name, ids, 12))


def test_concurrent_calls_equal_sequential_calls(engine, reference, generate, name):
    prompts = [prompt(seed, 3 + 7 * seed) for seed in range(6)]
    pending = [engine.start(ids, 8 + seed) for seed, ids in enumerate(prompts)]
    for seed, (ids, call) in enumerate(zip(prompts, pending, strict=True)):
        assert_same(reference(name), ids, call.wait().tokens, generate(name, ids, 8 + seed))


@pytest.mark.parametrize("draft_len", [1, 8])
def test_output_with_any_drafts_equals_hugging_face(engine, reference, generate, name, draft_len):
    ids = prompt(11, 20)
    want = generate(name, ids, 40)
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
    outcome = llama.call(ids, 20, end_id=first)
    assert outcome.tokens == []
    assert outcome.last.usage.first_token_time_ns == 0


def test_the_first_token_has_a_time_of_its_own(llama):
    usage = llama.call(prompt(1, 9), 5).last.usage
    assert usage.first_token_time_ns < usage.last_token_time_ns


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=3, top_p=0.9)])
def test_a_cpu_also_runs_half_precision(make_harness, sampling):
    half, ids = make_harness(dtype="bfloat16"), prompt(1, 9)
    text = half.tokens(ids, 5, sampling=sampling)
    assert len(text) == 5
    assert half.tokens(ids, 5, drafts=text[:4], sampling=sampling)
