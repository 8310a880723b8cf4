"""Calls that are batched get the same tokens as alone, with one copy to the host per step."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from engine_harness import prompt
from torch.overrides import TorchFunctionMode

from tandem.engines.engine import SamplingParams, Words

SAMPLED = SamplingParams(temperature=1.0, seed=11)
WARPED = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, seed=2**64 - 5)
TO_HOST = {"cpu", "tolist", "item", "nonzero", "__int__", "__float__", "__bool__", "__index__"}


class HostCopies(TorchFunctionMode):
    """Count each step's copies from the device to the host."""

    def __init__(self, engine) -> None:
        self.by_step: list[int] = []
        self._step = engine._step
        engine._step = self.step

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in TO_HOST:
            self.by_step[-1] += 1
        return function(*args, **(kwargs or {}))

    def step(self):
        self.by_step.append(0)
        with self:
            self._step()


@pytest.fixture
def batching(make_harness):
    return make_harness()


@contextmanager
def at_once(harness):
    """Hold the engine until all calls have arrived, so that it batches them."""
    with harness.engine._wake:
        yield


def answers(harness, calls) -> list:
    """Return the outcomes of calls that arrive at the same time."""
    with at_once(harness):
        pending = [harness.start(**asked) for asked in calls]
    return [call.wait() for call in pending]


def assert_alike(got, want) -> None:
    assert [one.tokens for one in got] == [one.tokens for one in want]
    for one, other in zip(got, want, strict=True):
        assert one.error == other.error
        assert one.last.usage.accepted_tokens == other.last.usage.accepted_tokens
        for ours, theirs in zip(numbers(one.last), numbers(other.last), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-3)


def numbers(answer) -> list[np.ndarray]:
    parts = [answer.log_probs, *(answer.top_log_probs or ()), answer.generation_logits]
    return [part for part in parts if part is not None]


def all_kinds_of_calls(text_of) -> list[dict]:
    """Return calls that end early or late, with all kinds of sampling."""
    calls = []
    for seed in range(4):
        ids = prompt(100 + seed, 5 + 3 * seed)
        text = text_of(ids, 30)
        sampling = [SamplingParams(top_k=1), SAMPLED, WARPED, SamplingParams(top_p=0.5, seed=3)]
        plain = {"ids": ids, "new": 21 + seed, "sampling": sampling[seed]}
        owed = SamplingParams(top_k=1, min_tokens=14)
        penal = SamplingParams(top_k=1, repetition_penalty=1.3)
        calls += [
            plain,
            {**plain, "return_log_probs": True},
            {**plain, "return_log_probs": True, "num_top_log_probs": 3},
            {**plain, "return_generation_logits": True},
            {**plain, "draft_stop_probability": 1e-3, "return_log_probs": True},
            {**plain, "streaming": True},
            {"ids": ids, "new": 20, "end_id": text[9 + seed]},
            {"ids": ids, "new": 20, "stop_words": Words.of(text[7 + seed : 9 + seed])},
            {"ids": ids, "new": 20, "end_id": text[3], "sampling": owed},
            {"ids": ids, "new": 12, "sampling": penal},
            {"ids": ids, "new": 6, "drafts": [*text[:3], 5]},
        ]
    return calls


def test_every_kind_of_call_is_the_same_in_a_batch(batching, llama):
    """The first four calls run alone, the others in batches."""
    calls = all_kinds_of_calls(llama.tokens)
    for group in [*([call] for call in calls[:4]), *(calls[4 + i :: 6] for i in range(6))]:
        assert_alike(answers(batching, group), [llama.call(**asked) for asked in group])


def test_concurrent_calls_keep_their_own_sampling(batching, llama):
    others = [{"top_p": 0.2}, {"top_k": 2}, {"min_p": 0.5}, {"min_p": 0.9}, {"temperature": 0.3}]
    ways = [SAMPLED, *(replace(SAMPLED, **other) for other in others), WARPED]
    calls = [
        {"ids": prompt(n, 6), "new": 3, "sampling": replace(ways[n % 7], seed=n)} for n in range(32)
    ]
    want = [llama.tokens(**asked) for asked in calls]
    assert [one.tokens for one in answers(batching, calls)] == want


def test_each_step_copies_to_the_host_once(make_harness, llama):
    engine = make_harness(max_batch_tokens=100)
    ids, long = prompt(300, 9), prompt(1, 80)
    text = llama.tokens(ids, 4)
    outcome = llama.call(ids, 4, sampling=SAMPLED, return_generation_logits=True)
    sampled, logits = outcome.tokens, outcome.last.generation_logits
    other = replace(SAMPLED, seed=99)
    calls = [
        {"ids": ids, "new": 5, "drafts": [*text[:2], 9, 9]},
        {"ids": ids, "new": 5, "drafts": sampled, "sampling": SAMPLED},
        {"ids": ids, "new": 5, "drafts": sampled, "draft_logits": logits, "sampling": other},
        {"ids": ids, "new": 1, "sampling": WARPED},
        {"ids": ids, "new": 1, "return_log_probs": True},
    ]
    want = [llama.call(**asked) for asked in calls]
    copies = HostCopies(engine.engine)
    assert_alike(answers(engine, calls), want)
    assert copies.by_step == [1]
    copies.by_step.clear()
    engine.tokens(long * 2, 1)
    assert copies.by_step == [1, 1]
