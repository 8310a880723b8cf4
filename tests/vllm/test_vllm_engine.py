"""The vLLM engine verifies drafts exactly, in one forward pass per round."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from distributions import Warp, fits
from engine_harness import VOCAB, prompt, wrong
from masks import Grammar
from transformers import AutoModelForCausalLM
from vllm_engine import start_vllm

from tandem.engines.engine import SamplingParams, Words
from tandem.engines.errors import EndedError, UnsupportedError
from tandem.engines.vllm.call import MAX_TOKENS_AHEAD

pytestmark = pytest.mark.engines
DRAWS = 2048
AT_ONCE = 32


@pytest.fixture(scope="module")
def engine(vllm_harness):
    return vllm_harness


@pytest.fixture(scope="module")
def logits_after(engine):
    """A function that returns the next-token logits [vocab_size] of transformers."""
    model = AutoModelForCausalLM.from_pretrained(engine.engine._settings.model).eval()

    def after(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0, -1].numpy()

    return after


def rounds(engine, ids, want, seed, *, name="", most=8, **asked):
    """Continue a text with partly correct drafts; return the text and the number of rounds.

    name: the text's name in the ids of the calls, as the loop makes them. most: tokens of a draft.
    """
    random = np.random.default_rng(seed)
    text, count = [], 0
    while len(text) < len(want):
        length = int(random.integers(0, most + 1))
        right = int(random.integers(0, length + 1))
        draft = want[len(text) : len(text) + right]
        draft += random.integers(2, VOCAB, length - len(draft)).tolist()
        request_id = f"{name}.{count}"
        text += engine.tokens(ids + text, length + 1, drafts=draft, request_id=request_id, **asked)
        count += 1
    return text[: len(want)], count


def test_drafts_do_not_change_greedy_output_and_rounds_take_one_step(engine):
    for seed in range(4):
        ids = prompt(seed, 40)
        want = engine.tokens(ids, 60)
        before = engine.engine.steps
        text, count = rounds(engine, ids, want, seed)
        assert text == want
        assert engine.engine.steps - before == count


def test_a_new_text_computes_only_the_last_block_of_a_known_prompt(engine):
    ids = prompt(3, 100)
    engine.tokens(ids)
    usage = engine.call(ids, 5, drafts=[9, 9, 9, 9]).last.usage
    assert (usage.reused_blocks, usage.computed_tokens) == (3, 100 - 3 * 32 + 4)


def test_a_round_computes_only_the_correction_token_and_the_draft(engine):
    ids = prompt(20, 75)
    want = engine.tokens(ids, 60)
    text = engine.tokens(ids, request_id="text-1.1")
    for right in [4, 0, 2, 4, 4, 1, 3, 4, 4, 4, 0]:
        draft = want[len(text) : len(text) + right] + wrong(want[len(text) + right :][: 4 - right])
        outcome = engine.call(ids + text, 5, drafts=draft, request_id="text-1.2")
        assert outcome.last.usage.computed_tokens == 5
        text += outcome.tokens
    assert text == want[: len(text)]


def test_a_draft_call_computes_only_the_new_tokens_of_its_text(engine):
    ids = prompt(21, 70)
    drafted = engine.tokens(ids, 4, request_id="text-2.1")
    for kept in (2, 4, 0):
        ids = [*ids, *drafted[:kept], 9]
        outcome = engine.call(ids, 4, request_id="text-2.2")
        assert outcome.last.usage.computed_tokens <= 2 + 3
        assert outcome.tokens == engine.tokens(ids, 4)
        drafted = outcome.tokens


def test_rejected_drafts_leave_no_trace_in_the_next_round(engine):
    """The log-probabilities of each round are the same as without a session."""
    ids = prompt(22, 45)
    want = engine.tokens(ids, 40)
    details = {"return_log_probs": True, "num_top_log_probs": 5}
    text = engine.tokens(ids, request_id="text-3.1")
    while len(text) < 32:
        draft = want[len(text) : len(text) + 1] + wrong(want[len(text) + 1 :][:6])
        given = {"new": len(draft) + 1, "drafts": draft, **details}
        session = engine.call(ids + text, request_id="text-3.2", **given)
        fresh = engine.call(ids + text, **given)
        assert session.tokens == fresh.tokens == want[len(text) : len(text) + 2]
        np.testing.assert_allclose(session.last.log_probs, fresh.last.log_probs, atol=1e-4)
        likeliest = [outcome.last.top_log_probs for outcome in (session, fresh)]
        np.testing.assert_array_equal(likeliest[0].ids, likeliest[1].ids)
        np.testing.assert_allclose(likeliest[0].log_probs, likeliest[1].log_probs, atol=1e-4)
        text += session.tokens


def test_a_text_that_was_cut_or_changed_is_continued_correctly(engine):
    ids = prompt(23, 20)
    want = engine.tokens(ids, 100)
    changed = ids + want[:59] + wrong(want[59:60])
    for context in (ids + want[:80], ids + want[:78], ids + want[:40], changed, ids[:3]):
        expected = engine.tokens(context, 6)
        for _ in range(2):
            given = {"drafts": expected[:2], "request_id": "text-4.1"}
            assert engine.tokens(context, 3, **given) == expected[:3]
        assert engine.tokens(context, 6, request_id="text-4.1") == expected


def test_calls_of_one_text_may_overlap(engine):
    ids = prompt(24, 50)
    want = engine.tokens(ids, 30)
    for _ in range(3):
        calls = [engine.start(ids, 30, request_id=f"text-5.{number}") for number in range(4)]
        assert [call.wait().tokens for call in calls] == [want] * 4


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(top_k=1, repetition_penalty=1.3),
        SamplingParams(top_k=1, presence_penalty=0.7, frequency_penalty=0.4),
        SamplingParams(top_k=1, bad_words=Words.of((40,), (41, 42), (7, 8, 9))),
    ],
    ids=["repetition_penalty", "presence_and_frequency_penalty", "bad_words"],
)
def test_penalties_and_bans_give_the_same_output_with_drafts(engine, sampling):
    ids = prompt(5, 30)
    want = engine.tokens(ids, 50, sampling=sampling)
    assert rounds(engine, ids, want, 5, sampling=sampling)[0] == want


def test_presence_and_frequency_penalties_count_the_whole_text(engine, logits_after):
    sampling = SamplingParams(top_k=1, presence_penalty=0.7, frequency_penalty=0.4)
    for seed in range(6):
        text = prompt(seed, 30) * 2
        counts = np.bincount(text, minlength=VOCAB)
        expected = int(np.argmax(logits_after(text) - 0.4 * counts - 0.7 * (counts > 0)))
        assert engine.tokens(text, 1, sampling=sampling) == [expected]
        asked = {"drafts": [expected, 2], "sampling": sampling, "request_id": f"text-6-{seed}.1"}
        assert engine.tokens(text, 3, **asked)[0] == expected


def test_a_bad_word_that_begins_in_the_context_is_not_completed(engine):
    ids = prompt(6, 30)
    word = Words.of((*ids[-2:], engine.tokens(ids, 1)[0]))
    sampling = SamplingParams(top_k=1, bad_words=word)
    assert engine.tokens(ids, 1, sampling=sampling) != engine.tokens(ids, 1)


def test_masks_apply_at_each_position_of_a_draft(engine):
    grammar, ids = Grammar(VOCAB), prompt(7, 30)
    want = []
    while len(want) < 20:
        text = ids + want
        want += engine.tokens(text, 1, token_masks=grammar.masks(text))
        assert want[-1] in grammar.legal(text)
    for at in range(0, 16, 4):
        text, draft = ids + want[:at], want[at : at + 3]
        masks = grammar.masks(text, draft)
        assert engine.tokens(text, 4, drafts=draft, token_masks=masks) == want[at : at + 4]


def drawn(engine, ids, count, sampling, of):
    """Return the answers to calls with many seeds. of: returns the arguments for a seed."""
    answers = []
    for start in range(0, count, AT_ONCE):
        pending = [
            engine.start(ids, sampling=SamplingParams(**sampling, seed=seed), **of(seed))
            for seed in range(start, start + AT_ONCE)
        ]
        answers += [call.wait().tokens for call in pending]
    return answers


@pytest.mark.parametrize("warp", [Warp(1.0), Warp(0.7, top_k=20, top_p=0.9)], ids=str)
@pytest.mark.parametrize("by", ["ids", "logits"])
def test_verified_drafts_have_the_targets_distribution(engine, logits_after, warp, by):
    ids = prompt(8, 20)
    exact = logits_after(ids)
    p = warp.of(exact)
    sampling = {"temperature": warp.temperature, "top_k": warp.top_k, "top_p": warp.top_p}
    draft_logits = np.roll(exact, 1) * 0.3 + exact * 0.5
    q = warp.of(draft_logits)
    random = np.random.default_rng(4)
    drafts = random.choice(VOCAB, DRAWS, p=q)

    def of(seed):
        given = {"draft_logits": draft_logits[None].astype(np.float32)} if by == "logits" else {}
        return {"new": 2, "drafts": [int(drafts[seed])], **given}

    answers = drawn(engine, ids, DRAWS, sampling, of)
    assert fits(np.bincount([answer[0] for answer in answers], minlength=VOCAB), p)
    accepted = np.mean([len(answer) == 2 for answer in answers])
    expected = np.minimum(p, q).sum() if by == "logits" else (p * q).sum()
    assert accepted == pytest.approx(expected, abs=4 / np.sqrt(DRAWS) / 2)


def test_a_seed_makes_verification_reproducible(engine):
    call = {"drafts": [5, 6], "sampling": SamplingParams(temperature=1.0, seed=3)}
    assert engine.tokens(prompt(9, 20), 3, **call) == engine.tokens(prompt(9, 20), 3, **call)


@pytest.mark.parametrize(
    "asked",
    [
        {"sampling": SamplingParams(temperature=1.0, min_p=0.1)},
        {"sampling": SamplingParams(top_k=1, embedding_bias=np.zeros(VOCAB, np.float32))},
        {"return_context_logits": True},
    ],
    ids=["min_p", "embedding_bias", "context_logits"],
)
def test_inputs_that_vllm_cannot_serve_exactly_are_rejected(engine, asked):
    with pytest.raises(UnsupportedError, match=r"isn't supported by this engine \(vllm\)"):
        engine.start(prompt(1, 9), 4, **asked)


def test_a_call_that_vllm_rejects_fails_alone(engine):
    invalid = SamplingParams(temperature=1.0, top_p=2.0)
    outcome = engine.start(prompt(1, 9), 4, sampling=invalid).wait()
    assert outcome.error.startswith("vLLM rejected the call: top_p must be in (0, 1], got 2")
    assert outcome.last.code == "INVALID_ARG"
    assert len(engine.tokens(prompt(1, 9), 4)) == 4


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
LOOKUP = {"method": "prompt_lookup", "num_speculative_tokens": 8}
BOTH = {"method": "draft_model", "num_speculative_tokens": 2, "prompt_lookup_num_tokens": 8}


@pytest.fixture(scope="module", params=[NGRAM, LOOKUP, BOTH], ids=lambda own: own["method"])
def speculating(tmp_path_factory, request):
    """An engine that drafts by itself, with vLLM's n-grams, Tandem's lookup, or a model too."""
    folder, own = tmp_path_factory.mktemp("speculating"), request.param
    if own is BOTH:
        own = own | {"model": str(folder)}  # always right
    harness = start_vllm(folder, speculative_config=own)
    yield harness
    harness.engine.close()


def test_vllms_own_speculation_is_counted_and_does_not_change_the_output(engine, speculating):
    ids = [*prompt(4, 12)] * 6
    want = engine.tokens(ids, 60)
    before = speculating.engine.steps
    outcome = speculating.call(ids, 60)
    usage = outcome.last.usage
    assert outcome.tokens == want
    assert 0 <= usage.accepted_tokens <= usage.draft_tokens > 0
    assert speculating.engine.steps - before == 60 - usage.accepted_tokens
    assert speculating.tokens(ids, 60, stop_words=Words.of(want[10:12])) == want[:12]
    prompts = [[*prompt(seed, 9 + seed)] * 4 for seed in range(8)]
    expected = [engine.tokens(each, 40) for each in prompts]
    for _ in range(2):  # the second time, the prompts are in the KV cache
        pending = [speculating.start(each, 40) for each in prompts]
        assert [call.wait().tokens for call in pending] == expected


def test_a_stream_in_several_calls_is_exact_if_vllm_drafts_by_itself(engine, speculating):
    repeated = [*prompt(4, 12)] * 6
    for name, ids, count in [("middle", repeated, 60), ("end", repeated * 3, 40)]:  # of the context
        want = engine.tokens(ids, count)
        text, usages = [], []
        while len(text) < count:
            outcome = speculating.call(ids + text, 4, request_id=f"{name}.{len(text)}")
            text += outcome.tokens
            usages.append(outcome.last.usage)
        assert text == want
        if speculating.engine._settings.speculative_config == LOOKUP:
            # A step drafts only what the call has room for, and keeps what others computed.
            assert max(usage.computed_tokens for usage in usages[1:]) <= 4 + 3 + 2 + 1
            assert usages[0].draft_tokens > 0


@pytest.mark.parametrize("drafts_itself", [False, True])
def test_a_stream_that_decodes_ahead_is_exact_and_computes_each_token_once(
    engine, speculating, drafts_itself
):
    harness, count = speculating if drafts_itself else engine, MAX_TOKENS_AHEAD
    ids = [*prompt(9, 12)] * 6
    harness.tokens(ids)  # the prompt is cached from now on
    whole = harness.call(ids, count)
    text, usages = [], []
    while len(text) < count:
        new, left = min(3, count - len(text)), count - len(text)
        outcome = harness.call(
            ids + text, new, request_id=f"a.{len(text)}", decode_ahead_len=left - new
        )
        assert new <= len(outcome.tokens) <= left
        text += outcome.tokens
        usages.append(outcome.last.usage)
    assert text == whole.tokens == engine.tokens(ids, count)
    for name in ("computed_tokens", "draft_tokens", "accepted_tokens"):
        assert sum(getattr(usage, name) for usage in usages) == getattr(whole.last.usage, name)


def test_a_call_takes_over_only_its_own_text(engine):
    ids = prompt(8, 40)
    want = engine.tokens(ids, 12)
    other = [*ids, wrong(want)[0]]
    expected = engine.tokens(other, 4)
    for salt, text, tokens in [(0, other, expected), (1, ids + want[:4], want[4:8])]:
        first = engine.tokens(ids, 4, request_id="b.1", decode_ahead_len=30)
        assert first[:4] == want[:4]
        got = engine.tokens(text, 4, request_id="b.2", cache_salt=salt)
        assert got == tokens
    assert engine.tokens(ids, 4, request_id="b.3", decode_ahead_len=30)[:4] == want[:4]
    draft = engine.tokens(ids + want[:4], 4, drafts=want[4:7], request_id="b.4")
    assert draft == want[4:8]
    # It may continue further than the first call, or return log-probabilities.
    for number, ahead in enumerate([0, 6]):
        text = engine.tokens(ids, 2, request_id=f"{number}.1", decode_ahead_len=3)
        for more in ({"decode_ahead_len": ahead}, {"return_log_probs": True}):
            outcome = engine.call(ids + text, 6, request_id=f"{number}.{len(text)}", **more)
            assert len(outcome.tokens) >= 6
            text += outcome.tokens
            assert (outcome.last.log_probs is None) == ("return_log_probs" not in more)
        assert text == engine.tokens(ids, len(text))


def test_drafts_are_exact_whatever_was_decoded_ahead_of_them(engine):
    prompts = [prompt(seed, length) for seed, length in [(3, 30), (5, 41), (9, 64)]]
    wanted = [engine.tokens(ids, 120) for ids in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    random = Random(0)
    while max(map(len, texts)) < 80:
        pending = []
        for number, (ids, want, text) in enumerate(zip(prompts, wanted, texts, strict=True)):
            name, rest = f"f{number}.{len(text)}", want[len(text) :]
            if random.random() < 0.6:
                more = {"new": 1 + random.randrange(2), "decode_ahead_len": 30}
            else:
                right = random.randrange(4)
                draft = [*rest[:right], *wrong(rest[right : right + 1])]
                more = {"new": len(draft) + 1, "drafts": draft}
            pending.append(engine.start(ids + text, request_id=name, **more))
        for call, text in zip(pending, texts, strict=True):
            text.extend(call.wait().tokens)
        time.sleep(random.choice([0.0, 0.0, 0.1]))
    assert texts == [want[: len(text)] for want, text in zip(wanted, texts, strict=True)]


def test_decoding_ahead_ends_at_its_limit_and_at_the_end_of_the_answer(engine):
    ids = prompt(9, 40)
    want = engine.tokens(ids, 80)
    before = engine.engine.steps
    text = engine.tokens(ids, 2, request_id="c.1", decode_ahead_len=100)
    time.sleep(1.0)
    engine.tokens(prompt(1, 9))  # reports the number of steps
    assert len(text) + MAX_TOKENS_AHEAD <= engine.engine.steps - before < 60
    while len(text) < 80:  # the answer goes on
        more = engine.tokens(ids + text, 2, request_id=f"c.{len(text)}", decode_ahead_len=100)
        assert len(more) >= 2
        text += more
    assert text[:80] == want
    assert len(engine.tokens(ids, 2, request_id="c.90", decode_ahead_len=100)) < 10
    time.sleep(1.0)
    longer = ids + engine.tokens(ids, 2)
    assert len(engine.tokens(longer, 60, request_id="c.91")) == 60
    end = next(i for i in range(20, 80) if want[i] not in want[:i])
    text = engine.tokens(ids, 2, request_id="d.1", end_id=want[end], decode_ahead_len=70)
    while more := engine.tokens(
        ids + text, 2, request_id=f"d.{len(text)}", end_id=want[end], decode_ahead_len=60
    ):
        text += more
    assert text == want[:end]


def test_a_stopped_call_does_not_decode_ahead(small):
    pending = small.start(prompt(2, 30), 100, request_id="e.1", decode_ahead_len=100)
    small.engine.stop("e.1")
    assert len(pending.wait().tokens) < 100
    assert not small.engine._calls
    ids = prompt(2, 30)
    assert len(small.tokens(ids, 4, request_id="e.2", decode_ahead_len=8)) >= 4
    small.engine.stop("e.2")  # has ended
    assert len(small.tokens(ids, 200)) == 200


def test_masks_apply_if_vllm_drafts_by_itself(engine, speculating):
    grammar, ids = Grammar(VOCAB), prompt(7, 30) * 2
    sampled = SamplingParams(temperature=1.0)
    for seed in range(8):
        asked = {"token_masks": grammar.masks(ids), "sampling": replace(sampled, seed=seed)}
        assert speculating.tokens(ids, 1, **asked)[0] in grammar.legal(ids)
    greedy = {"token_masks": grammar.masks(ids)}
    assert speculating.tokens(ids, 1, **greedy) == engine.tokens(ids, 1, **greedy)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An engine with room for two sequences of maximum length, and few tokens per step."""
    folder = tmp_path_factory.mktemp("small")
    harness = start_vllm(
        folder, kv_cache_tokens=512, max_batch_size=8, max_draft_len=4, max_batch_tokens=128
    )
    yield harness
    harness.engine.close()


def test_preemption_and_chunked_prefill_do_not_change_the_output(small):
    prompts = [prompt(seed, 150 + seed) for seed in range(8)]
    want = [small.tokens(ids, 60) for ids in prompts]
    pending = [small.start(ids, 60) for ids in prompts]
    verified = [
        small.start(ids, 5, drafts=text[:4]) for ids, text in zip(prompts, want, strict=True)
    ]
    assert [call.wait().tokens for call in pending] == want
    assert [call.wait().tokens for call in verified] == [text[:5] for text in want]


def test_more_texts_than_the_kv_cache_holds_all_end_and_are_exact(small):
    """Idle sessions must not keep the blocks that another text needs."""
    prompts = [prompt(seed, 120 + seed) for seed in range(6)]
    want = [small.tokens(ids, 60) for ids in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        made = pool.map(
            lambda seed: rounds(
                small, prompts[seed], want[seed], seed, name=f"text-{seed}", most=4
            )[0],
            range(len(prompts)),
        )
        assert list(made) == want


def test_stopped_calls_release_the_whole_kv_cache(small):
    """The last two calls need all KV blocks. If one is missing, vLLM preempts a call.

    The engine serves 8 concurrent calls, so the last calls would wait forever if 8 others remained.
    """
    for first in range(0, 50, 5):
        started = [
            small.start(prompt(seed, 40), 200, request_id=f"text.{seed}", streaming=True)
            for seed in range(first, first + 5)
        ]
        started[0].next()  # the other calls may still wait or compute their prompts
        for seed in range(first, first + 5):
            small.engine.stop(f"text.{seed}")
        assert all(len(call.wait().tokens) < 200 for call in started)
    whole = [small.start(prompt(seed, 156), 100) for seed in (60, 61)]
    assert [call.wait().last.usage.computed_tokens for call in whole] == [156 + 99] * 2


def test_calls_fail_immediately_with_the_cause_if_vllm_dies(small):
    running = small.start(prompt(1, 9), 240, streaming=True)
    running.next()
    os.kill(small.engine._process.pid, signal.SIGKILL)
    outcome = running.wait()
    assert outcome.error == "vLLM's process ended with status -9"
    assert outcome.last.code == "UNAVAILABLE"
    with pytest.raises(EndedError, match="vLLM's process ended"):
        small.tokens(prompt(1, 9))


@pytest.mark.parametrize("speculating", [BOTH], indirect=True, ids=["draft_model"])
def test_vllms_drafts_are_used_unless_a_copy_is_longer(speculating):
    unknown = speculating.call(prompt(6, 30), 31).last.usage
    assert (unknown.draft_tokens, unknown.accepted_tokens) == (20, 20)  # 10 steps after the first
    repeated = [*prompt(9, 12)] * 6  # the text ends the copied passage
    usage = speculating.call(repeated, 31).last.usage
    assert usage.draft_tokens - usage.accepted_tokens >= 6  # the first copy is wrong
    assert usage.accepted_tokens >= 18


@pytest.mark.parametrize("speculating", [BOTH], indirect=True, ids=["draft_model"])
def test_vllms_own_drafts_keep_the_targets_distribution(speculating, logits_after):
    ids, warp = [*prompt(8, 20)] * 3, Warp(0.5, top_k=20, top_p=0.9)
    sampling = {"temperature": warp.temperature, "top_k": warp.top_k, "top_p": warp.top_p}
    answers = drawn(speculating, ids, DRAWS, sampling, lambda _: {"new": 3})
    place, seen = 0, answers
    while place < 2:  # given the most likely tokens before it
        counts = np.bincount([answer[place] for answer in seen], minlength=VOCAB)
        assert len(seen) > 100
        assert fits(counts, warp.of(logits_after(ids)))
        token, place = int(counts.argmax()), place + 1
        ids, seen = [*ids, token], [answer for answer in seen if answer[place - 1] == token]
