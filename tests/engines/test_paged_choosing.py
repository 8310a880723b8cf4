"""The paged engine samples the same tokens on the device as on the CPU."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, prompt
from torch.overrides import TorchFunctionMode

from tandem.engines.noise import Purpose, exponentials, key_of, uniform
from tandem.engines.request import SamplingParams
from tandem.engines.torch.noise import exponentials_of, keys_on
from tandem.engines.torch.verification import (
    DeviceDrafts,
    verify_probabilities,
    verify_probabilities_on_device,
)
from tandem.engines.words import Words

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
def paged(make_harness):
    return make_harness("paged llama")


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
        assert one.last.cum_log_prob == pytest.approx(other.last.cum_log_prob, abs=1e-3)
        for ours, theirs in zip(numbers(one.last), numbers(other.last), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-3)


def numbers(answer) -> list[np.ndarray]:
    parts = [answer.log_probs, *(answer.top_log_probs or ()), answer.generation_logits]
    return [part for part in parts if part is not None]


def asked_in_all_ways(text_of) -> list[dict]:
    """Return calls that end early or late, and that sample on the device or on the host."""
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


def test_every_kind_of_call_equals_the_unpaged_engine(paged, llama):
    """The first four calls run alone, the others in batches."""
    calls = asked_in_all_ways(llama.tokens)
    for group in [*([call] for call in calls[:4]), *(calls[4 + i :: 6] for i in range(6))]:
        assert_alike(answers(paged, group), [llama.call(**asked) for asked in group])


def drafted(harness, ids, sampling):
    """Return four draft tokens and the logits that they were sampled from."""
    outcome = harness.call(ids, 4, sampling=sampling, return_generation_logits=True)
    return outcome.tokens, outcome.last.generation_logits


@pytest.mark.parametrize(
    ("warped", "threshold"), [(SAMPLED, None), (SAMPLED, 0.6), (WARPED, None), (WARPED, 0.6)]
)
def test_logits_mode_equals_the_unpaged_engine(make_harness, llama, paged, warped, threshold):
    draft = make_harness("qwen2")
    kept = []
    for seed in range(12):
        ids = prompt(200 + seed, 9)
        drafts, logits = drafted(draft, ids, replace(warped, seed=seed))
        asked = {
            "drafts": drafts,
            "draft_logits": logits / 8,
            "sampling": replace(warped, seed=seed + 50),
            "draft_acceptance_threshold": threshold,
            "return_log_probs": True,
        }
        got, want = paged.call(ids, 5, **asked), llama.call(ids, 5, **asked)
        assert got.tokens == want.tokens
        assert got.last.usage.accepted_tokens == want.last.usage.accepted_tokens
        np.testing.assert_allclose(got.last.log_probs, want.last.log_probs, atol=1e-3)
        kept.append(len(got.tokens))
    assert len(set(kept)) > 1


@pytest.mark.parametrize("width", [VOCAB - 3, VOCAB + 5])
def test_padded_draft_logits_are_verified_as_in_the_unpaged_engine(make_harness, width):
    engines = [make_harness(name, draft_vocab_size=width) for name in ("paged llama", "llama")]
    lengths = []
    for seed in range(30):
        sampling = replace(SAMPLED, seed=seed)
        drafts = engines[1].tokens(prompt(seed, 6), 3, sampling=sampling)
        drafts = [min(token, VOCAB - 4) for token in drafts]
        logits = np.zeros((3, width), np.float32)
        logits[range(3), drafts] = 4 + seed % 4  # likely, but not as in the target
        asked = {"drafts": drafts, "draft_logits": logits, "sampling": sampling}
        one, other = (engine.tokens(prompt(seed, 6), 4, **asked) for engine in engines)
        assert one == other
        lengths.append(len(one))
    assert set(lengths) == {1, 2, 3, 4}


def test_concurrent_calls_keep_their_own_sampling(paged, llama):
    others = [{"top_p": 0.2}, {"top_k": 2}, {"min_p": 0.5}, {"min_p": 0.9}, {"temperature": 0.3}]
    ways = [SAMPLED, *(replace(SAMPLED, **other) for other in others), WARPED]
    calls = [
        {"ids": prompt(n, 6), "new": 3, "sampling": replace(ways[n % 7], seed=n)} for n in range(32)
    ]
    want = [llama.tokens(**asked) for asked in calls]
    assert [one.tokens for one in answers(paged, calls)] == want


def test_token_0_can_be_drafted_and_accepted(paged, llama):
    logits = np.zeros((3, VOCAB), np.float32)
    logits[:, 0] = -60  # almost impossible in the draft, so the target accepts it
    asked = {"drafts": [0, 0, 0], "draft_logits": logits, "sampling": SAMPLED}
    got = paged.tokens(prompt(2, 6), 4, **asked)
    assert got[:3] == [0, 0, 0]
    assert got == llama.tokens(prompt(2, 6), 4, **asked)


def test_a_rejected_draft_token_that_is_redrawn_ends_the_round(paged, llama):
    cold = SamplingParams(temperature=1e-30, seed=3)  # p and q are 1 for the draft tokens
    ids = prompt(2, 6)
    text = llama.tokens(ids, 4)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[range(4), text] = 1
    asked = {"drafts": text, "draft_logits": logits, "draft_acceptance_threshold": 1.5}
    assert llama.tokens(ids, 5, sampling=cold, **asked) == text[:1]
    assert paged.tokens(ids, 5, sampling=cold, **asked) == text[:1]


def test_empty_draft_logits_are_ignored(paged, llama):
    nothing = np.zeros((0, VOCAB), np.float32)
    got = paged.tokens(prompt(2, 6), 9, sampling=WARPED, draft_logits=nothing)
    assert got == llama.tokens(prompt(2, 6), 9, sampling=WARPED)


def test_each_step_copies_to_the_host_once_but_prompt_chunks_never(make_harness, llama):
    engine = make_harness("paged llama", max_batch_tokens=100)
    ids, long = prompt(300, 9), prompt(1, 80)
    text, (sampled, logits) = llama.tokens(ids, 4), drafted(llama, ids, SAMPLED)
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
    assert copies.by_step == [0, 1]


def test_the_device_generates_the_same_noise_as_the_host():
    keys = [key_of(seed, 7, Purpose.SAMPLE) for seed in (0, 1, 5, 2**64 - 1, 2**63)]
    found = exponentials_of(keys_on(torch.device("cpu"), keys), 5000)
    want = [exponentials(seed, 7, Purpose.SAMPLE, 5000) for seed in (0, 1, 5, 2**64 - 1, 2**63)]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), np.stack(want), rtol=2e-7)
    assert float(exponentials_of(torch.tensor([0]), VOCAB).min()) > 0


def some_probabilities(generator, rows: int, zeros: float) -> torch.Tensor:
    weights = torch.rand((rows, 12), generator=generator).log().neg() ** 3
    weights[torch.rand((rows, 12), generator=generator) < zeros] = 0
    weights[:, 3] += 1e-3
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("threshold", [None, 0.4, 1.0])
def test_verifying_draft_tokens_at_once_gives_the_same_result_as_one_by_one(threshold):
    generator = torch.Generator().manual_seed(4)
    lengths = []
    for seed in range(250):
        p = some_probabilities(generator, 4, 0.3)
        q = some_probabilities(generator, 3, 0.3)
        if seed % 4 == 0:
            q = p[:3].clone()  # all draft tokens are accepted, so the residual is empty
        drafts = q.multinomial(1, generator=generator)[:, 0]
        if seed % 9 == 0:
            q[1] = torch.nan  # from a broken draft model
        if seed % 7 == 0:
            drafts[0] = int(q[0].argmin())  # this token's probability in q is often 0
        purposes = [Purpose.RESIDUAL] * 3 + [Purpose.SAMPLE]
        keys = [key_of(seed, 20 + i, purpose) for i, purpose in enumerate(purposes)]
        u = [uniform(seed, 20 + i, Purpose.ACCEPT) for i in range(3)]
        u = torch.tensor([threshold] * 3 if threshold else u, dtype=torch.float64)
        found = verify_probabilities_on_device(
            p, DeviceDrafts(drafts, q, u, keys_on(p.device, keys))
        ).tolist()
        want = verify_probabilities(
            drafts.tolist(), p, q, seed=seed, position=20, threshold=threshold
        )
        assert found == want + [-1] * (4 - len(want))
        lengths.append(len(want))
    assert set(lengths) == {1, 2, 3, 4}


def test_without_a_residual_the_correction_is_sampled_from_the_target():
    p = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.5, 0.5, 0.5]])  # q is at least p everywhere, as after rounding errors
    keys = keys_on(p.device, [key_of(5, i, Purpose.RESIDUAL) for i in range(2)])
    u = torch.tensor([0.5], dtype=torch.float64)
    found = verify_probabilities_on_device(p, DeviceDrafts(torch.tensor([0]), q, u, keys)).tolist()
    assert found[0] in {1, 2}
    assert found[1] == -1
