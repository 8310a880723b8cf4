"""Every engine passes these tests if it has the required capability."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from emulated import emulated
from engine_harness import VOCAB, Conducted, Harness, prompt, wrong

from tandem.engines.emulated.engine import EmulatedEngine, WallTimer
from tandem.engines.engine import SamplingParams, Words
from tandem.engines.errors import RequestError

pytestmark = pytest.mark.engines
SAMPLED = SamplingParams(temperature=1.0, seed=11)


# `make test-vllm` sets this variable to vllm, in a separate environment.
ENGINES = os.environ.get("TANDEM_TEST_ENGINES", "torch,llamacpp,emulated").split(",")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request) -> Harness:
    """An engine of each kind, with a vocabulary of 131 tokens and no end id."""
    if request.param == "vllm":
        return request.getfixturevalue("vllm_harness")
    if request.param == "torch":
        return request.getfixturevalue("make_harness")()
    if request.param == "llamacpp":
        return request.getfixturevalue("make_llamacpp")()
    return emulated(step_ms=0.2, timer=WallTimer())


@pytest.fixture
def able(engine, request) -> Harness:
    """The engine, if it has the capability that the test needs."""
    if not getattr(engine.engine.capabilities, request.param):
        pytest.skip(f"no {request.param}")
    return engine


def needs(capability: str):
    """Run a test on `able`, an engine with the capability."""
    return pytest.mark.parametrize("able", [capability], indirect=True)


def skip_vllm(engine):
    """Skip a test that needs KV reuse per token: vLLM reuses whole blocks of 32 tokens."""
    if type(engine.engine).__name__ == "VllmEngine":
        pytest.skip("vLLM reuses whole blocks")


def test_without_streaming_there_is_one_final_response(engine):
    outcome = engine.call(prompt(1, 9), 12)
    assert [answer.final for answer in outcome.answers] == [True]
    assert len(outcome.tokens) == 12


def test_greedy_output_is_repeatable_and_can_resume_at_any_token(engine):
    ids = prompt(2, 9)
    whole = engine.tokens(ids, 20)
    assert engine.tokens(ids, 20) == whole
    assert engine.tokens(ids + whole[:7], 13) == whole[7:]


def test_concurrent_calls_equal_sequential_calls(engine):
    prompts = [prompt(seed, 3 + 2 * seed) for seed in range(12)]
    alone = [engine.tokens(ids, 10) for ids in prompts]
    pending = [engine.start(ids, 10) for ids in prompts]
    assert [call.wait().tokens for call in pending] == alone


def test_an_end_id_ends_the_output_and_is_omitted(engine):
    ids = prompt(3, 9)
    text = engine.tokens(ids, 20)
    end = text[6]
    assert engine.tokens(ids, 20, end_id=end) == text[: text.index(end)]


def test_a_stop_word_ends_the_output_and_is_included(engine):
    ids = prompt(4, 9)
    text = engine.tokens(ids, 20)
    assert engine.tokens(ids, 20, stop_words=Words.of((5, 6, 7), text[4:6])) == text[:6]


def test_a_stop_word_of_one_token_ends_the_output_and_is_included(engine):
    ids = prompt(4, 9)
    text = engine.tokens(ids, 20)
    expected = text[: text.index(text[6]) + 1]
    assert engine.tokens(ids, 20, stop_words=Words.of((VOCAB + 5,), (text[6],))) == expected
    assert engine.tokens(ids, 20, stop_words=Words.of((text[6],)), streaming=True) == expected


@pytest.mark.parametrize("stops", ["end_id", "stop_words"])
def test_end_ids_and_stop_words_are_ignored_before_min_tokens(engine, stops):
    ids = prompt(4, 9)
    end = engine.tokens(ids, 1)[0]
    asked = {"end_id": end} if stops == "end_id" else {"stop_words": Words.of((end,))}
    for min_tokens in range(7):
        sampling = SamplingParams(top_k=1, min_tokens=min_tokens)
        text = engine.tokens(ids, 20, sampling=sampling, **asked)
        assert len(text) >= min_tokens
        assert end not in text[:min_tokens]


def test_a_longer_stop_word_is_ignored_before_min_tokens(engine):
    ids = prompt(4, 9)
    text = engine.tokens(ids, 12)
    at_least = SamplingParams(top_k=1, min_tokens=6)
    word = Words.of(text[2:4])
    assert engine.tokens(ids, 12, stop_words=word)[:4] == text[:4]
    assert engine.tokens(ids, 12, stop_words=word, sampling=at_least)[:6] == text[:6]


@pytest.mark.parametrize("least", [1e-30, 1e-39, 1e-45])
def test_the_lowest_temperatures_mean_greedy_decoding(engine, least):
    ids = prompt(5, 9)
    cold = SamplingParams(temperature=float(np.float32(least)), seed=3)
    assert engine.tokens(ids, 12, sampling=cold) == engine.tokens(ids, 12)


def test_tokens_are_checked_against_100000_bad_words_without_a_loop(engine):
    ids = prompt(5, 9)
    random = np.random.default_rng(3)
    listed = random.integers(40, VOCAB, (100_000, 3)).astype(np.int32)
    longer = Words(listed.ravel(), 3 * np.arange(1, 100_001))
    first = engine.tokens(ids, 1)[0]
    single = Words(np.full(100_000, first, np.int32), np.arange(1, 100_001))
    began = time.process_time()
    banned = set(map(tuple, listed.tolist()))
    loop = time.process_time() - began
    said = [*ids, *engine.tokens(ids, 60, sampling=SamplingParams(top_k=1, bad_words=longer))]
    assert first not in engine.tokens(ids, 20, sampling=SamplingParams(top_k=1, bad_words=single))
    assert time.process_time() - began < 20 * loop
    assert not banned & {tuple(said[i - 3 : i]) for i in range(len(ids) + 1, len(said) + 1)}


def test_bad_words_are_never_generated(engine):
    ids = prompt(5, 9)
    first = engine.tokens(ids, 1)[0]
    banned = SamplingParams(top_k=1, bad_words=Words.of((first,)))
    assert first not in engine.tokens(ids, 12, sampling=banned)


def test_a_repeated_context_computes_only_its_last_token(engine):
    skip_vllm(engine)
    ids = prompt(6, 33)
    engine.tokens(ids)
    usage = engine.call(ids).last.usage
    assert (usage.computed_tokens, usage.reused_blocks, usage.new_blocks) == (1, 4, 1)


@needs("verifies_drafts")
def test_each_round_computes_only_its_new_tokens(able):
    skip_vllm(able)
    ids = prompt(16, 60)
    whole = able.tokens(ids, 40)
    salt = {"cache_salt": 99}  # the rounds must not reuse what the first call computed
    text: list[int] = []
    able.call(ids, 1, **salt)
    while len(text) < 35:
        right = len(text) % 5
        drafts = whole[len(text) : len(text) + 4]
        drafts = drafts[:right] + wrong(drafts[right:])
        outcome = able.call(ids + text, 5, drafts=drafts, **salt)
        assert outcome.last.usage.computed_tokens <= 1 + 4
        text += outcome.tokens
    assert text == whole[: len(text)]


@pytest.mark.parametrize(("shared", "blocks"), [(1, 0), (7, 0), (8, 1), (9, 1), (15, 1), (16, 2)])
def test_only_whole_kv_blocks_are_reported_as_reused(engine, shared, blocks):
    """A partly shared block is reused, but not reported."""
    skip_vllm(engine)
    first, second = prompt(6, 20), prompt(7, 20)
    second = [*first[:shared], (first[shared] + 1) % VOCAB, *second[shared + 1 :]]
    engine.tokens(first)
    usage = engine.call(second).last.usage
    assert usage.computed_tokens == 20 - shared
    assert (usage.reused_blocks, usage.new_blocks) == (blocks, 3 - blocks)


@needs("cache_salt")
def test_a_call_with_another_salt_reuses_nothing(able):
    ids = prompt(26, 70)

    def reused(salt):
        return able.call(ids, cache_salt=salt).last.usage.reused_blocks

    assert [reused(0), reused(7), reused(2**64 - 1)] == [0, 0, 0]
    assert reused(0) == reused(7) == reused(2**64 - 1) > 0


def test_call_timestamps_are_in_order(engine):
    usage = engine.call(prompt(7, 9), 5).last.usage
    assert 0 < usage.first_scheduled_time_ns <= usage.first_token_time_ns
    # vLLM delivers all tokens at once if its steps are faster than the reader.
    assert usage.first_token_time_ns <= usage.last_token_time_ns


def test_drafting_ends_at_the_stop_probability(engine):
    outcome = engine.call(prompt(8, 9), 12, return_log_probs=True)
    chances = np.exp(np.cumsum(outcome.last.log_probs))
    limit = float(chances[4]) * 1.001
    ends_at = int(np.argmax(chances < limit))
    assert 0 < ends_at <= 4
    stopped = engine.tokens(prompt(8, 9), 12, draft_stop_probability=limit)
    assert stopped == outcome.tokens[: ends_at + 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": [VOCAB]}, "input_ids must have ids between 0 and 130; got 131"),
        ({"ids": prompt(1, 200), "new": 100}, "the limit is 256"),
        ({"ids": prompt(1, 200), "new": 4, "decode_ahead_len": 96}, "the limit is 256"),
        ({"ids": [5], "drafts": [6], "decode_ahead_len": 4}, "decode_ahead_len can't be combined"),
        (
            {"ids": [5], "token_masks": np.full((1, 5), -1, np.int32), "decode_ahead_len": 4},
            "decode_ahead_len can't be combined",
        ),
        ({"ids": [5], "end_id": VOCAB}, "end_id must be between 0 and 130; got 131"),
    ],
)
def test_an_impossible_call_is_rejected_with_its_reason(engine, given, message):
    with pytest.raises(RequestError, match=message):
        engine.start(**given)


def test_streaming_sends_one_token_per_response_and_marks_the_last(engine):
    ids = prompt(9, 9)
    outcome = engine.call(ids, 12, streaming=True)
    assert [len(answer.tokens) for answer in outcome.answers] == [1] * 12
    assert [answer.final for answer in outcome.answers] == [False] * 11 + [True]
    assert outcome.tokens == engine.tokens(ids, 12)


def test_a_stream_ends_if_a_response_cannot_be_delivered(engine):
    def fail():
        raise OSError("no memory")

    stream = Conducted(engine, prompt(30, 12), 60, {1: fail, 2: lambda: "goes on"})
    engine.call(prompt(31, 8), 20)
    assert stream.results == []


def test_stop_ends_a_running_call_and_ignores_unknown_ids(engine):
    if isinstance(engine.engine, EmulatedEngine):
        pytest.skip("test_emulated_timing tests it in virtual time")
    engine.engine.stop("nobody")
    # vLLM runs in its own process, so it may compute more tokens before the stop arrives.
    actions = {1: lambda: engine.engine.stop("s")}
    outcome = Conducted(engine, prompt(10, 9), 200, actions).wait()
    assert outcome.error is None
    assert len(outcome.tokens) < 199
    assert len(engine.tokens(prompt(10, 9), 5)) == 5


@needs("verifies_drafts")
@pytest.mark.parametrize("right", range(5))
def test_a_verification_emits_the_accepted_tokens_plus_one(able, right):
    ids = prompt(11, 12)
    text = able.tokens(ids, 6)
    outcome = able.call(ids, 5, drafts=text[:right] + wrong(text[right:4]))
    assert outcome.tokens == text[: right + 1]
    assert outcome.last.usage.accepted_tokens == right
    assert able.tokens(ids, 6) == text  # rejected drafts don't change later output


@needs("verifies_drafts")
def test_a_stop_word_of_one_token_ends_a_verification(able):
    ids = prompt(11, 12)
    text = able.tokens(ids, 6)
    for at in range(5):
        outcome = able.call(ids, 5, drafts=text[:4], stop_words=Words.of((text[at],)))
        expected = text[: text.index(text[at]) + 1]
        assert outcome.tokens == expected
        assert outcome.last.usage.accepted_tokens == len(expected) - 1


@needs("verifies_drafts")
def test_the_end_id_in_a_draft_is_not_counted_as_accepted(able):
    ids = prompt(11, 12)
    text = able.tokens(ids, 6)
    for at in range(5):
        outcome = able.call(ids, 5, drafts=text[:4], end_id=text[at])
        expected = text[: text.index(text[at])]
        assert outcome.tokens == expected
        assert outcome.last.usage.accepted_tokens == len(expected)


@needs("verifies_drafts")
def test_token_counts_are_correct_however_a_call_ends(able):
    random = np.random.default_rng(5)
    for seed in range(30):
        ids = prompt(seed, 9)
        text = able.tokens(ids, 9)
        right, length = random.integers(0, 9, 2)
        drafts = (text[:right] + wrong(text[right:8]))[:length]
        ends = [int(token) for token in random.choice(text, 2)]
        asked = [{}, {"end_id": ends[0]}, {"stop_words": Words.of(ends[:1], ends)}][seed % 3]
        limit = int(random.integers(1, 10))
        outcome = able.call(ids, limit, drafts=drafts, **asked)
        usage, tokens = outcome.last.usage, outcome.tokens
        assert usage.draft_tokens == len(drafts)
        assert 0 <= usage.accepted_tokens <= usage.draft_tokens
        if drafts:
            emitted = text[: min(right, len(drafts)) + 1][:limit]
            left_out = "end_id" in asked and ends[0] in emitted
            assert len(tokens) + left_out - usage.accepted_tokens == 1  # accepted tokens plus one


@needs("verifies_drafts")
def test_a_draft_that_is_too_long_is_rejected(able):
    with pytest.raises(RequestError, match="draft_input_ids has 40 tokens"):
        able.start([5, 6], 41, drafts=[7] * 40)


@needs("log_probs_with_drafts")
def test_log_probs_of_a_verification_equal_plain_decoding(able):
    ids = prompt(12, 10)
    plain = able.call(ids, 5, return_log_probs=True)
    verified = able.call(ids, 5, drafts=plain.tokens[:4], return_log_probs=True)
    assert verified.tokens == plain.tokens
    np.testing.assert_allclose(verified.last.log_probs, plain.last.log_probs, atol=1e-4)


@needs("keyed_randomness")
@pytest.mark.parametrize("draft_len", [1, 4, 8])
def test_a_seed_gives_the_same_output_with_and_without_drafts(able, draft_len):
    ids = prompt(13, 12)
    want = able.tokens(ids, 30, sampling=SAMPLED)
    assert want != able.tokens(ids, 30, sampling=SamplingParams(temperature=1.0, seed=12))
    text: list[int] = []
    while len(text) < 20:
        right = len(text) % (draft_len + 1)
        drafts = want[len(text) : len(text) + draft_len]
        drafts = drafts[:right] + wrong(drafts[right:])
        text += able.tokens(ids + text, draft_len + 1, drafts=drafts, sampling=SAMPLED)
    assert text == want[: len(text)]


@needs("returns_logits")
@pytest.mark.parametrize(("count", "seed"), [(1, 14), (1, 15), (1, 16), (4, 14)])
def test_drafts_sampled_from_the_targets_own_logits_are_all_accepted(able, count, seed):
    ids = prompt(seed, 12)
    sampling = SamplingParams(temperature=2.0, seed=11)
    proposal = able.call(ids, count, sampling=sampling, return_generation_logits=True)
    logits = proposal.last.generation_logits
    assert logits.shape == (count, VOCAB)
    other = replace(sampling, seed=99)
    outcome = able.call(ids, count + 1, drafts=proposal.tokens, draft_logits=logits, sampling=other)
    assert outcome.tokens[:count] == proposal.tokens


@needs("returns_logits")
def test_each_token_has_a_row_of_logits_wherever_the_output_ends(able):
    ids = prompt(11, 12)
    text = able.tokens(ids, 6)
    for drafts in (), text[:4]:
        for end in text[:5]:
            asked = {"drafts": drafts, "end_id": end, "return_generation_logits": True}
            outcome = able.call(ids, 5, **asked)
            assert outcome.tokens == text[: text.index(end)]
            rows = outcome.last.generation_logits
            assert (0 if rows is None else len(rows)) == len(outcome.tokens)


@needs("verifies_drafts")
def test_draft_logits_of_the_wrong_shape_are_rejected(able):
    logits = np.zeros((2, VOCAB + 1), np.float32)
    with pytest.raises(RequestError, match=r"draft_logits must have shape .*; got \[2, 132\]"):
        able.start([5, 6], 3, drafts=[7, 8], draft_logits=logits)
