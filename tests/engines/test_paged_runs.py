"""Steps of the paged engine whose tokens stay on the device until several of them have run."""

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
from tandem.engines.torch.paged.noise import exponentials_of, keys_on
from tandem.engines.torch.paged.runner import RUN_STEPS
from tandem.engines.torch.sequence import UNSURE_STEPS
from tandem.engines.torch.verification import SentDrafts, verify_at_once, verify_probabilities
from tandem.engines.words import Words

SAMPLED = SamplingParams(temperature=1.0, seed=11)
WARPED = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, seed=2**64 - 5)
TO_HOST = {"cpu", "tolist", "item", "nonzero", "__int__", "__float__", "__bool__", "__index__"}
TO_DEVICE = {"tensor", "from_numpy", "as_tensor", "to"}


class HostCopies(TorchFunctionMode):
    """Notes what is copied from the device to the host: how many numbers each time.

    late: what is sent to the device between a step's start and the copy; that would wait for it.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.runs = False
        self.late: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in TO_HOST:
            self.sizes.append(args[0].numel())
        if function.__name__ in TO_DEVICE and self.runs and not self.sizes:
            self.late.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Runs:
    """The engine's forward passes: how many calls, and steps, each of them had."""

    def __init__(self, engine) -> None:
        self.made: list[tuple[int, int]] = []
        self.copies: list[list[int]] = []
        self.before = lambda: None
        self.late: list[str] = []
        runner = engine._model._paged
        self._run, self._step, self._first = engine._model.run, engine._step, runner.step
        engine._model.run, engine._step, runner.step = self.run, self.step, self.first

    def run(self, ids, segments, choices, steps):
        self.before()
        found = self._run(ids, segments, choices, steps)
        self.made.append((len(segments), len(found)))
        return found

    def step(self):
        with HostCopies() as self.now:
            self.copies.append(self.now.sizes)  # before somebody has an answer
            self._step()

    def first(self, *given):
        found = self._first(*given)
        self.now.runs = True
        self.now.late = self.late
        return found


@pytest.fixture
def paged(make_harness):
    return make_harness("paged llama")


@pytest.fixture
def runs(paged):
    return Runs(paged.engine)


@contextmanager
def at_once(harness):
    """Let the engine meet all calls that are made here in one step."""
    with harness.engine._wake:
        yield


@contextmanager
def step_by_step(harness):
    """Let the host look at every token."""
    harness.engine._steps_ahead = lambda _chosen: 1
    yield
    del harness.engine._steps_ahead


def answers(harness, calls) -> list[dict]:
    """What calls that arrive at once are answered."""
    with at_once(harness):
        pending = [harness.start(**asked) for asked in calls]
    found = []
    for call in pending:
        outcome = call.wait()
        usage = outcome.last.usage
        found.append(
            {
                "error": outcome.error,
                "tokens": [answer.tokens for answer in outcome.answers],
                "log_probs": [answer.log_probs for answer in outcome.answers],
                "total": outcome.last.cum_log_prob,
                "top": outcome.last.top_log_probs,
                "logits": outcome.last.generation_logits,
                "counts": (usage.computed_tokens, usage.draft_tokens, usage.accepted_tokens),
            }
        )
    return found


def assert_alike(got, want) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        for name in ("error", "tokens", "counts"):
            assert one[name] == other[name], name
        assert one["total"] == pytest.approx(other["total"], abs=1e-3)
        for name in ("log_probs", "top", "logits"):
            for ours, theirs in zip(flat(one[name]), flat(other[name]), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-3)


def flat(arrays) -> list[np.ndarray]:
    if arrays is None:
        return []
    parts = arrays if isinstance(arrays, list | tuple) else [arrays]
    return [part for part in parts if part is not None]


def asked_in_all_ways(text_of) -> list[dict]:
    """Calls that end in the middle of a run, or at its end, or whose tokens somebody looks at."""
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
            {**plain, "new": 1},
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
            {"ids": ids, "new": 4, "return_prompt_log_probs": True},
        ]
    return calls


def test_runs_say_what_single_steps_do(paged, runs, llama):
    calls = asked_in_all_ways(llama.tokens)
    with step_by_step(paged):
        want = [answers(paged, [asked])[0] for asked in calls]
    assert {steps for _, steps in runs.made} == {1}
    got = [answers(paged, [asked])[0] for asked in calls]
    for one, other in zip(got, want, strict=True):
        one["counts"] = (one["counts"][0] * 0, *one["counts"][1:])  # the second finds its prompt
        other["counts"] = (0, *other["counts"][1:])
    assert_alike(got, want)
    assert {steps for _, steps in runs.made} >= {2, 5, RUN_STEPS}
    plain = [llama.call(**asked).tokens for asked in calls]
    assert [[t for part in one["tokens"] for t in part] for one in got] == plain


def test_calls_at_once_say_what_they_say_alone(paged, runs, llama):
    able = [
        asked
        for asked in asked_in_all_ways(llama.tokens)
        if not {"streaming", "drafts", "num_top_log_probs", "return_prompt_log_probs"} & {*asked}
    ]
    groups = [able[i::6] for i in range(6)]
    want = [[llama.call(**asked).tokens for asked in group] for group in groups]
    for group, texts in zip(groups, want, strict=True):
        found = answers(paged, group)
        assert [[t for part in one["tokens"] for t in part] for one in found] == texts
    assert max(calls for calls, steps in runs.made if steps > 1) > 2


def test_a_run_is_bounded_and_its_tokens_come_in_one_copy(paged, runs):
    paged.tokens(prompt(3, 9), 20)
    assert runs.made == [(1, RUN_STEPS), (1, RUN_STEPS), (1, 20 - 2 * RUN_STEPS)]
    assert runs.copies == [[RUN_STEPS], [RUN_STEPS], [4]]
    assert runs.late == []


def test_a_run_is_as_long_as_the_shortest_of_its_calls(paged, runs):
    with at_once(paged):
        one, other = paged.start(prompt(3, 9), 3), paged.start(prompt(4, 20), 9)
    assert (len(one.wait().tokens), len(other.wait().tokens)) == (3, 9)
    assert runs.made == [(2, 3), (1, 6)]


def test_a_draft_that_may_be_unsure_runs_little_ahead(paged, runs):
    text = paged.tokens(prompt(8, 9), 7)
    runs.made.clear()
    assert paged.tokens(prompt(8, 9), 7, draft_stop_probability=1e-30) == text
    assert {steps for _, steps in runs.made} == {1, UNSURE_STEPS}
    runs.made.clear()
    first = paged.tokens(prompt(8, 9), 7, draft_stop_probability=1.0)
    assert (first, runs.made) == (text[:1], [(1, UNSURE_STEPS)])


def test_a_streaming_call_beside_one_that_runs_ahead_does_not_wait(paged, runs, llama):
    one, other = prompt(5, 9), prompt(6, 14)
    with at_once(paged):
        streams, runs_on = paged.start(one, 6, streaming=True), paged.start(other, 20)
    outcome = streams.wait()
    assert [len(answer.tokens) for answer in outcome.answers] == [1] * 6
    assert outcome.tokens == llama.tokens(one, 6)
    assert runs_on.wait().tokens == llama.tokens(other, 20)
    assert runs.made[:6] == [(2, 1)] * 6
    assert runs.made[6:] == [(1, RUN_STEPS), (1, 6)]


def test_a_call_that_arrives_during_a_run_is_in_the_next_step(paged, runs, llama):
    late = []

    def arrive():
        if len(runs.made) == 1 and not late:
            late.append(paged.start(prompt(7, 11), 4))

    runs.before = arrive
    assert paged.tokens(prompt(6, 14), 30) == llama.tokens(prompt(6, 14), 30)
    assert late[0].wait().tokens == llama.tokens(prompt(7, 11), 4)
    assert runs.made[:4] == [(1, RUN_STEPS), (1, RUN_STEPS), (2, 4), (1, RUN_STEPS)]


def test_a_long_prompt_beside_does_not_wait_for_runs(make_harness, llama):
    engine = make_harness("paged llama", max_batch_tokens=9)
    runs = Runs(engine.engine)
    with at_once(engine):
        one, other = engine.start(prompt(8, 5), 12), engine.start(prompt(9, 40), 3)
    assert one.wait().tokens == llama.tokens(prompt(8, 5), 12)
    assert other.wait().tokens == llama.tokens(prompt(9, 40), 3)
    assert all(steps == 1 for calls, steps in runs.made[:5])


def test_a_call_that_the_step_has_no_room_for_does_not_wait_for_runs(make_harness):
    engine = make_harness("paged llama", max_batch_tokens=8, max_draft_len=4)
    runs = Runs(engine.engine)
    with at_once(engine):
        pending = [engine.start(prompt(20 + n, 1), 6) for n in range(12)]
    assert [len(call.wait().tokens) for call in pending] == [6] * 12
    assert runs.made == [(8, 1)] * 9


def test_a_call_that_is_stopped_in_a_run_answers_what_it_had_and_gives_back_its_pages(
    paged, runs, llama
):
    ids = prompt(10, 9)
    want = llama.tokens(ids, 40)
    cache = paged.engine._model.cache

    def stop():
        if len(runs.made) == 1:
            paged.engine.stop("x")

    runs.before = stop
    outcome = paged.call(ids, 40, request_id="x")
    assert outcome.tokens == want[: 2 * RUN_STEPS]
    [entry] = [e for e in cache._entries if e.tokens[:9].tolist() == ids]
    assert not entry.busy
    assert entry.length == 9 + 2 * RUN_STEPS - 1
    assert len(entry.pages) == cache.blocks_for(entry.length)
    runs.before = lambda: None
    assert paged.computed(ids + outcome.tokens) == 1
    assert paged.tokens(ids, 40) == want


def test_what_was_run_in_vain_stays_nowhere(paged, runs, llama):
    """A call ends at its second token; pages behind it go to others, which are not disturbed."""
    ids, beside = prompt(11, 8), prompt(12, 8)  # its first new token begins a page
    text = llama.tokens(ids, 12)
    total = paged.engine.computed_tokens
    with at_once(paged):
        ended, other = paged.start(ids, 12, end_id=text[2]), paged.start(beside, 12)
    outcome = ended.wait()
    assert outcome.tokens == text[: text.index(text[2])]
    assert other.wait().tokens == llama.tokens(beside, 12)
    assert runs.made[0] == (2, RUN_STEPS)
    used = outcome.last.usage.computed_tokens
    assert used == 8 + text.index(text[2])
    assert paged.engine.computed_tokens - total == 8 + RUN_STEPS - 1 + 8 + 11
    [entry] = [e for e in paged.engine._model.cache._entries if e.tokens[:8].tolist() == ids]
    assert len(entry.pages) == -(-entry.length // 8)
    assert paged.tokens(ids, 12) == text


def test_texts_that_fit_into_no_padded_step_run_step_by_step(paged, runs, llama):
    runner = paged.engine._model._paged
    runner.buckets = [bucket for bucket in runner.buckets if bucket.pages * 8 <= 16]
    assert paged.tokens(prompt(4, 7), 14) == llama.tokens(prompt(4, 7), 14)
    assert [steps for _, steps in runs.made] == [RUN_STEPS, 1, 1, 1, 1, 1, 1]


def drafted(harness, ids, sampling):
    """Drafts of four tokens, and what they were drawn from."""
    outcome = harness.call(ids, 4, sampling=sampling, return_generation_logits=True)
    return outcome.tokens, outcome.last.generation_logits


@pytest.mark.parametrize(
    ("warped", "threshold"), [(SAMPLED, None), (SAMPLED, 0.6), (WARPED, None), (WARPED, 0.6)]
)
def test_verification_by_logits_keeps_what_the_host_would(
    make_harness, llama, paged, warped, threshold
):
    runs = Runs(paged.engine)
    draft = make_harness("qwen2")
    kept = []
    for seed in range(25):
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
    assert runs.copies == [[2 * 5]] * 25  # tokens and log-probabilities of five rows


@pytest.mark.parametrize("width", [VOCAB - 3, VOCAB + 5])
def test_logits_of_a_draft_that_is_padded_differently_are_verified_as_on_the_host(
    make_harness, width
):
    engines = [make_harness(name, draft_vocab_size=width) for name in ("paged llama", "llama")]
    lengths = []
    for seed in range(30):
        sampling = replace(SAMPLED, seed=seed)
        drafts = engines[1].tokens(prompt(seed, 6), 3, sampling=sampling)
        drafts = [min(token, VOCAB - 4) for token in drafts]
        logits = np.zeros((3, width), np.float32)
        logits[range(3), drafts] = 4 + seed % 4  # likely, and not always as likely as there
        asked = {"drafts": drafts, "draft_logits": logits, "sampling": sampling}
        one, other = (engine.tokens(prompt(seed, 6), 4, **asked) for engine in engines)
        assert one == other
        lengths.append(len(one))
    assert set(lengths) == {1, 2, 3, 4}


def test_calls_at_once_are_sampled_each_in_its_own_way(paged, runs, llama):
    others = [{"top_p": 0.2}, {"top_k": 2}, {"min_p": 0.5}, {"min_p": 0.9}, {"temperature": 0.3}]
    ways = [SAMPLED, *(replace(SAMPLED, **other) for other in others), WARPED]
    calls = [
        {"ids": prompt(n, 6), "new": 3, "sampling": replace(ways[n % 7], seed=n)} for n in range(32)
    ]
    want = [tuple(llama.tokens(**asked)) for asked in calls]
    assert [one["tokens"] for one in answers(paged, calls)] == [[text] for text in want]
    assert runs.made == [(32, 3)]


def test_the_first_token_of_the_vocabulary_is_a_token(paged, llama):
    logits = np.zeros((3, VOCAB), np.float32)
    logits[:, 0] = -60  # the draft proposes what it never would: the target takes it
    asked = {"drafts": [0, 0, 0], "draft_logits": logits, "sampling": SAMPLED}
    got = paged.tokens(prompt(2, 6), 4, **asked)
    assert got[:3] == [0, 0, 0]
    assert got == llama.tokens(prompt(2, 6), 4, **asked)


def test_a_rejected_draft_token_that_is_drawn_again_ends_the_round(paged, llama):
    cold = SamplingParams(temperature=1e-30, seed=3)  # p is 1 there, as q is
    ids = prompt(2, 6)
    text = llama.tokens(ids, 4)
    logits = np.zeros((4, VOCAB), np.float32)
    logits[range(4), text] = 1
    asked = {"drafts": text, "draft_logits": logits, "draft_acceptance_threshold": 1.5}
    assert llama.tokens(ids, 5, sampling=cold, **asked) == text[:1]
    assert paged.tokens(ids, 5, sampling=cold, **asked) == text[:1]


def test_logits_of_no_draft_change_nothing(paged, llama):
    nothing = np.zeros((0, VOCAB), np.float32)
    got = paged.tokens(prompt(2, 6), 9, sampling=WARPED, draft_logits=nothing)
    assert got == llama.tokens(prompt(2, 6), 9, sampling=WARPED)


def test_every_step_of_many_kinds_of_calls_copies_once(paged, runs, llama):
    calls = []
    for seed in range(3):
        ids = prompt(300 + seed, 9)
        text = llama.tokens(ids, 4)
        sampled, logits = drafted(llama, ids, SAMPLED)
        other = replace(SAMPLED, seed=99)
        calls += [
            {"ids": ids, "new": 5, "drafts": [*text[:2], 9, 9]},
            {"ids": ids, "new": 5, "drafts": sampled, "sampling": SAMPLED},
            {"ids": ids, "new": 5, "drafts": [*sampled[:1], 9], "sampling": WARPED},
            {"ids": ids, "new": 5, "drafts": sampled, "draft_logits": logits, "sampling": other},
            {"ids": ids, "new": 1, "sampling": WARPED},
            {"ids": ids, "new": 1, "return_log_probs": True},
        ]
    want = [llama.call(**asked) for asked in calls]
    found = answers(paged, calls)
    assert runs.made == [(18, 1)]
    assert runs.copies == [[2 * 3 * (5 + 5 + 3 + 5 + 1 + 1)]]
    assert runs.late == []
    assert [one["tokens"] for one in found] == [[call.last.tokens] for call in want]
    accepted = [call.last.usage.accepted_tokens for call in want]
    assert [one["counts"][2] for one in found] == accepted
    np.testing.assert_allclose(found[5]["log_probs"][0], want[5].last.log_probs, atol=1e-3)


def test_a_chunk_of_a_prompt_copies_nothing(make_harness):
    engine = make_harness("paged llama", max_batch_tokens=9)
    runs = Runs(engine.engine)
    engine.tokens(prompt(1, 40), 1)
    assert runs.copies == [[]] * 4 + [[1]]


def test_noise_of_the_device_is_the_hosts():
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
def test_verifying_at_once_is_verifying_token_by_token(threshold):
    generator = torch.Generator().manual_seed(4)
    lengths = []
    for seed in range(400):
        p = some_probabilities(generator, 4, 0.3)
        q = some_probabilities(generator, 3, 0.3)
        if seed % 4 == 0:
            q = p[:3].clone()  # all are accepted: a residual would be nothing
        drafts = q.multinomial(1, generator=generator)[:, 0]
        if seed % 9 == 0:
            q[1] = torch.nan  # of a broken draft model
        if seed % 7 == 0:
            drafts[0] = int(q[0].argmin())  # often one that q has none of
        purposes = [Purpose.RESIDUAL] * 3 + [Purpose.SAMPLE]
        keys = [key_of(seed, 20 + i, purpose) for i, purpose in enumerate(purposes)]
        u = [uniform(seed, 20 + i, Purpose.ACCEPT) for i in range(3)]
        u = torch.tensor([threshold] * 3 if threshold else u, dtype=torch.float64)
        found = verify_at_once(p, SentDrafts(drafts, q, u, keys_on(p.device, keys))).tolist()
        want = verify_probabilities(
            drafts.tolist(), p, q, seed=seed, position=20, threshold=threshold
        )
        assert found == want + [-1] * (4 - len(want))
        lengths.append(len(want))
    assert set(lengths) == {1, 2, 3, 4}


def test_a_rejected_token_of_which_rounding_leaves_nothing_is_corrected_from_p():
    p = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.5, 0.5, 0.5]])  # more than p everywhere, as rounding may have it
    keys = keys_on(p.device, [key_of(5, i, Purpose.RESIDUAL) for i in range(2)])
    u = torch.tensor([0.5], dtype=torch.float64)
    found = verify_at_once(p, SentDrafts(torch.tensor([0]), q, u, keys)).tolist()
    assert found[0] in {1, 2}
    assert found[1] == -1
