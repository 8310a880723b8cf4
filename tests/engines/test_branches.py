"""On every engine, a branch equals a plain draft call with the same context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import emulated
from engine_harness import VOCAB, Harness, branch_call, prompt
from scale import first_of

from tandem.engines.emulated.engine import EmulatedEngine
from tandem.engines.engine import Branches, SamplingParams, Words
from tandem.engines.errors import RequestError

GREEDY = SamplingParams(top_k=1)
SAMPLED = SamplingParams(temperature=1.0, seed=11)
KINDS = ["emulated", "llamacpp", *first_of("mistral", "llama", "gpt2", "qwen2")]


@pytest.fixture(scope="module", params=KINDS)
def engine(request) -> Harness:
    """An engine of each kind that declares `branches`."""
    if request.param == "emulated":
        return emulated(role="draft", max_draft_len=0, hard_alpha=0.4)
    if request.param == "llamacpp":
        return request.getfixturevalue("make_llamacpp")(max_batch_tokens=128)
    return request.getfixturevalue("make_harness")(request.param, max_batch_tokens=128)


def emulates(harness) -> bool:
    return isinstance(harness.engine, EmulatedEngine)


def branches(engine, ids, drafts, counts, output_len, **given) -> Branches:
    """Request branches. counts, output_len: one value, or one per accepted length."""
    outcome = engine.call(ids, **branch_call(drafts, counts, output_len), **given)
    assert not outcome.tokens
    assert outcome.last.branches is not None
    return outcome.last.branches


def rows(found: Branches) -> list[tuple[int, int, list[int]]]:
    """Return (accepted length, next token, drafted tokens) of each branch."""
    lengths = found.lengths.tolist()
    ids = [row[:n] for row, n in zip(found.ids.tolist(), lengths, strict=True)]
    assert not found.ids.size or found.ids.shape[1] == max(lengths)
    return [(j, x, row) for (j, x), row in zip(found.outcomes.tolist(), ids, strict=True)]


def assert_plain(engine, ids, drafts, found, output_len, *, sampling=GREEDY, **given) -> None:
    """Assert that each branch equals a plain draft call with the same context."""
    for accepted, token, drafted in rows(found):
        owed = max(0, sampling.min_tokens - accepted - 1)
        length = int(np.broadcast_to(output_len, len(drafts) + 1)[accepted])
        context = [*ids, *drafts[:accepted], token]
        plain = engine.tokens(context, length, sampling=replace(sampling, min_tokens=owed), **given)
        assert drafted == plain, (accepted, token)


def test_each_branch_equals_a_plain_draft_on_the_same_context(engine):
    ids = prompt(1, 40)
    drafts = engine.tokens(ids, 5)
    found = branches(engine, ids, drafts, 3, 6)
    assert [j for j, _, _ in rows(found)] == [j for j in range(6) for _ in range(3)]
    assert_plain(engine, ids, drafts, found, 6)
    assert len({tuple(row) for *_, row in rows(found)}) > 6  # equal lengths, different branches


def test_branches_begin_with_the_most_likely_alternatives_to_the_draft_token(engine):
    if emulates(engine):
        pytest.skip("its alternatives are a list apart")
    ids = prompt(2, 20)
    drafts = engine.tokens(ids, 3)
    found = rows(branches(engine, ids, drafts, 2, 1))
    for accepted in range(4):
        context = ids + drafts[:accepted]
        taken = drafts[accepted : accepted + 1]
        for _ in range(2):
            banned = SamplingParams(top_k=1, bad_words=Words.of(*([t] for t in taken)))
            taken.append(engine.tokens(context, 1, sampling=banned)[0])
        assert [x for j, x, _ in found if j == accepted] == taken[-2:]


@pytest.mark.parametrize(
    "sampling",
    [
        replace(SAMPLED, top_k=50, top_p=0.7, temperature=0.8),
        replace(SAMPLED, repetition_penalty=1.3, presence_penalty=0.4),
        replace(GREEDY, frequency_penalty=0.7),
        replace(GREEDY, bad_words=Words.of((5,), (7, 8))),
    ],
)
def test_each_branch_uses_penalties_and_noise_of_its_own_context(engine, sampling):
    if emulates(engine) and sampling.repetition_penalty + sampling.frequency_penalty != 1:
        pytest.skip("it has no penalties")
    ids = prompt(3, 30)
    drafts = engine.tokens(ids, 4, sampling=sampling)
    found = branches(engine, ids, drafts, 3, 5, sampling=sampling)
    assert len(found.lengths) > 5
    assert_plain(engine, ids, drafts, found, 5, sampling=sampling)


def test_sampled_branches_begin_with_the_most_likely_correction(engine):
    """The most likely correction is the token that is sampled if the draft token is banned."""
    if emulates(engine):
        pytest.skip("its alternatives are a list apart")
    ids = prompt(4, 20)
    drafts = engine.tokens(ids, 4, sampling=SAMPLED)
    found = rows(branches(engine, ids, drafts, 1, 1, sampling=SAMPLED))
    for accepted, token, _ in found:
        banned = Words.of(*([t] for t in drafts[accepted : accepted + 1]))
        context = ids + drafts[:accepted]
        assert [token] == engine.tokens(context, 1, sampling=replace(SAMPLED, bad_words=banned))


def test_a_call_for_branches_counts_no_drafts_as_verified(engine):
    usage = engine.call(prompt(17, 20), **branch_call([4, 5], 1, 2)).last.usage
    assert (usage.draft_tokens, usage.accepted_tokens) == (0, 0)


def test_each_accepted_length_sets_its_own_branch_count_and_length(engine):
    ids, drafts = prompt(5, 20), [4, 5, 6]
    counts, lengths = [0, 4, 1, 2], [3, 2, 0, 5]
    found = branches(engine, ids, drafts, counts, lengths)
    assert [j for j, _, _ in rows(found)] == [1, 1, 1, 1, 3, 3]
    assert found.lengths.tolist() == [2, 2, 2, 2, 5, 5]
    assert found.ids[0, 2:].tolist() == [0, 0, 0]
    assert_plain(engine, ids, drafts, found, lengths)


def test_without_draft_tokens_branches_follow_the_context(engine):
    ids = prompt(6, 12)
    found = branches(engine, ids, [], 3, 4)
    assert found.outcomes[:, 0].tolist() == [0, 0, 0]
    assert found.outcomes[0, 1] == engine.tokens(ids, 1)[0]
    assert_plain(engine, ids, [], found, 4)


def test_a_call_can_request_zero_branches(engine):
    found = branches(engine, prompt(7, 12), [4, 5], 0, 4)
    assert found.outcomes.shape == (0, 2)
    assert found.ids.shape == (0, 0)


def test_a_branch_ends_at_the_stop_probability(engine):
    ids, drafts = prompt(9, 20), [4, 5, 6]
    limit = 0.3
    found = branches(engine, ids, drafts, 4, 6, draft_stop_probability=limit)
    assert len(set(found.lengths.tolist())) > 1
    assert_plain(engine, ids, drafts, found, 6, draft_stop_probability=limit)


@pytest.mark.parametrize("ends", ["end_id", "stop_words"])
def test_an_end_of_sequence_ends_only_its_own_branch(engine, ends):
    ids = prompt(10, 20)
    drafts = engine.tokens(ids, 4)
    whole = rows(branches(engine, ids, drafts, 3, 6))
    end = next(row[2] for *_, row in whole if row[2] not in {*drafts, *row[:2]})
    asked = {"end_id": end} if ends == "end_id" else {"stop_words": Words.of((end,))}
    found = branches(engine, ids, drafts, 3, 6, **asked)
    assert min(found.lengths) < 6
    assert_plain(engine, ids, drafts, found, 6, **asked)
    assert [(j, x) for j, x, _ in rows(found)] == [(j, x) for j, x, _ in whole if x != end]


def test_no_branch_continues_after_an_end(engine):
    """No branch follows a draft token or a next token that is an end id or a stop word."""
    ids, drafts = prompt(11, 20), [4, 5, 6, 7]
    counts = [2, 2, 2, 2, 2]
    first = rows(branches(engine, ids, drafts, counts, 3))[0][1]
    found = rows(branches(engine, ids, drafts, counts, 3, stop_words=Words.of((first,), (6,))))
    assert {j for j, _, _ in found} == {0, 1, 2}
    assert first not in {x for _, x, _ in found}
    assert len([j for j, _, _ in found if j == 0]) == 1  # the dropped branch still uses a slot


@pytest.mark.parametrize("min_tokens", [0, 1, 3, 7])
def test_min_tokens_is_counted_from_the_context_in_every_branch(engine, min_tokens):
    ids = prompt(12, 20)
    drafts = [4, 5]
    plain = rows(branches(engine, ids, drafts, 2, 5))
    end = plain[0][2][1]
    sampling = replace(GREEDY, min_tokens=min_tokens)
    found = branches(engine, ids, drafts, 2, 5, sampling=sampling, end_id=end)
    assert_plain(engine, ids, drafts, found, 5, sampling=sampling, end_id=end)
    for accepted, token, drafted in rows(found):
        assert end not in [*drafts[:accepted], token, *drafted][:min_tokens]


def test_a_branch_without_allowed_tokens_ends_without_affecting_others(engine):
    ids = prompt(13, 12)
    whole = rows(branches(engine, ids, [20], 3, 2))
    mute = whole[0][1]
    sampling = replace(GREEDY, bad_words=Words.of(*((mute, t) for t in range(VOCAB))))
    found = rows(branches(engine, ids, [20], 3, 2, sampling=sampling))
    assert [(j, x) for j, x, _ in found] == [(j, x) for j, x, _ in whole]
    assert {len(row) for _, x, row in found if x == mute} == {0}
    assert max(len(row) for _, x, row in found) == 2


def test_the_kv_cache_keeps_context_and_draft_tokens_after_branching(engine):
    ids = prompt(14, 48)
    drafts = engine.tokens(ids, 4)
    branches(engine, ids, drafts, 4, 6)
    assert engine.computed(ids + drafts, 1) <= 1
    assert engine.computed([*ids, *drafts[:2], 9], 1) <= 1


def test_branching_and_plain_calls_run_concurrently(engine):
    prompts = [prompt(seed, 12 + seed) for seed in range(20, 26)]
    texts = [engine.tokens(ids, 8) for ids in prompts]
    counts = np.full(4, 3, np.int32)
    asked = {"branch_counts": counts, "branch_output_len": counts + 2}
    pending = [
        engine.start(ids, drafts=text[:3], **asked)
        for ids, text in zip(prompts, texts, strict=True)
    ]
    plain = [engine.start(ids, 8) for ids in prompts]
    assert [call.wait().tokens for call in plain] == texts
    for ids, text, call in zip(prompts, texts, pending, strict=True):
        assert_plain(engine, ids, text[:3], call.wait().last.branches, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"branch_counts": [1, 1]}, "branch_counts must have 3 values for 2 draft tokens; got 2"),
        (
            {"branch_output_len": [1]},
            "branch_output_len must have 3 values for 2 draft tokens; got 1",
        ),
        ({"branch_counts": [1, -1, 1]}, "branch_counts must have .*; got -1"),
        ({"branch_counts": [1024, 1, 0]}, "has 1025 branches in total; the limit is 1024"),
        ({"branch_counts": [2**31 - 1] * 3}, "has 6442450941 branches"),
        ({"branch_output_len": [1, 300, 1]}, "the limit is 256"),
        ({"streaming": True}, "streaming isn't supported with branch_counts"),
        (
            {"return_generation_logits": True},
            "return_generation_logits isn't supported with branch_counts",
        ),
        ({"branch_counts": None}, "branch_counts is missing"),
    ],
)
def test_an_invalid_call_is_rejected_with_its_reason(engine, given, message):
    asked = {"branch_counts": [1, 1, 1], "branch_output_len": [2, 2, 2]} | given
    asked = {
        name: np.array(value, np.int32) if isinstance(value, list) else value
        for name, value in asked.items()
    }
    with pytest.raises(RequestError, match=message):
        engine.start(prompt(15, 9), drafts=[4, 5], **asked)
