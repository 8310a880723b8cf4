"""Pools of earlier answers on the live server: who gains by them, and who does not."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from entries import OUTPUTS, ask, ask_one, refusal, stream, streaming
from metrics import Change, settle, total, until

from .conftest import emulated_zero, serving

PROMPT = "def total(items):\n"
LENGTH = 120
MAX_TOKENS = 10_000
POOLED = {"drafter": "prompt_lookup", "prompt_lookup": {"max_pool_tokens": MAX_TOKENS}}


@pytest.fixture(scope="module")
def pooling(tmp_path_factory):
    """A server with pools, of emulated engines: their texts never end, and never repeat by rule."""
    folder = tmp_path_factory.mktemp("pooling")
    with serving(emulated_zero(folder, step_ms={"target": 1.0}, decoding=POOLED), folder) as server:
        yield server


@pytest.fixture(scope="module")
def control(pooling):
    return ask_one(pooling, "ensemble", PROMPT, max_tokens=LENGTH)


def told(server, pool=None, prompt=PROMPT, **values):
    """An answer's ids, its rounds, and what was copied from a pool."""
    named = {} if pool is None else {"lookup_pool": pool}
    outputs = (*OUTPUTS, "spec_decode_statistics")
    values = {"max_tokens": LENGTH, **named, **values}
    answer = ask_one(server, "bls", prompt, outputs=outputs, **values)
    earned = json.loads(answer.outputs["spec_decode_statistics"][0])["by_drafter"]
    copied = earned.get("lookup_pool", {}).get("num_accepted_draft_tokens", 0)
    return answer.ids, answer.number("num_rounds"), copied


@pytest.mark.parametrize("drafter", ["prompt_lookup", "hybrid"])
def test_an_answer_that_was_given_before_takes_clearly_fewer_rounds(pooling, control, drafter):
    values = {"drafter": drafter, "num_draft_tokens": 4, "prompt_lookup_num_tokens": 16}
    first, rounds, copied = told(pooling, f"again {drafter}", **values)
    assert copied == 0
    again, fewer, copied = told(pooling, f"again {drafter}", **values)
    assert first == again == control.ids
    assert copied > LENGTH / 2
    assert fewer < rounds / 2


def test_who_names_another_pool_or_none_gains_nothing(pooling, control):
    _, rounds, _ = told(pooling, "theirs")
    for pool in ("Theirs", "their", "theirs ", None):
        assert told(pooling, pool) == (control.ids, rounds, 0)
    assert told(pooling, "theirs")[2] > 0


def test_a_request_without_a_pool_leaves_nothing_behind(pooling):
    settle(pooling)
    before = total(pooling, "tandem_lookup_pool_tokens")
    told(pooling, None)
    ask_one(pooling, "ensemble", PROMPT, max_tokens=LENGTH, lookup_pool="no drafter")
    assert told(pooling, "no drafter")[2] == 0
    until(lambda: total(pooling, "tandem_lookup_pool_tokens") == before + LENGTH)


def test_a_stream_joins_and_copies_too(pooling, control):
    for copies in (False, True):
        change = Change(pooling)
        chunks = stream(pooling, PROMPT, max_tokens=LENGTH, lookup_pool="stream")
        assert [token for chunk in chunks for token in chunk.ids] == control.ids
        change.until_ended(1)
        accepted = "spec_decode_num_accepted_tokens_total"
        assert bool(change.of(accepted, drafter="lookup_pool")) == copies
        assert change.of("spec_decode_num_drafts_total", drafter="lookup_pool") >= copies


def test_a_sampled_text_is_its_seeds(pooling):
    sampled = {"temperature": 0.9, "seed": 11}
    expected = ask_one(pooling, "ensemble", PROMPT, max_tokens=LENGTH, **sampled).ids
    assert told(pooling, "seeded", **sampled)[::2] == (expected, 0)
    ids, _, copied = told(pooling, "seeded", **sampled)
    assert ids == expected
    assert copied > LENGTH / 2


def test_where_lengths_decide_a_seeded_text_nothing_is_copied(pooling):
    values = {
        "drafter": "hybrid",
        "num_draft_tokens": 4,
        "temperature": 0.9,
        "seed": 11,
        "use_draft_logits": True,
    }
    first, again = (told(pooling, "logits", **values) for _ in range(2))
    assert first[0] == again[0]
    assert first[2] == again[2] == 0


def test_an_answer_that_was_cancelled_does_not_join(pooling, control):
    settle(pooling)
    before = total(pooling, "tandem_lookup_pool_tokens")
    values = {"max_tokens": 1000, "lookup_pool": "cancelled"}
    with streaming(pooling, PROMPT, **values) as chunks:
        for _ in range(40):
            next(chunks)
    settle(pooling)
    assert total(pooling, "tandem_lookup_pool_tokens") == before
    assert told(pooling, "cancelled")[::2] == (control.ids, 0)


def test_prompts_of_one_request_share_its_pool(pooling):
    prompts = [PROMPT, PROMPT + "    "]
    expected = ask(pooling, "ensemble", prompts, max_tokens=LENGTH)
    for _ in range(2):
        answers = ask(pooling, "bls", prompts, max_tokens=LENGTH, lookup_pool="batch")
        assert [a.ids for a in answers] == [a.ids for a in expected]
    assert told(pooling, "batch", prompts[1])[2] > LENGTH / 2


def test_many_at_once_join_and_copy_and_every_text_is_right(pooling):
    prompts = [f"def number_{at % 8}(" for at in range(64)]
    expected = {
        prompt: ask_one(pooling, "ensemble", prompt, max_tokens=LENGTH).ids
        for prompt in set(prompts)
    }
    with ThreadPoolExecutor(64) as crowd:
        for _ in range(2):
            asked = crowd.map(
                lambda numbered: told(pooling, f"crowd {numbered[0] % 3}", numbered[1]),
                enumerate(prompts),
            )
            for prompt, (ids, _, _) in zip(prompts, asked, strict=True):
                assert ids == expected[prompt]
    settle(pooling)
    assert total(pooling, "tandem_lookup_pool_tokens") <= MAX_TOKENS


def test_a_pool_is_refused_where_the_profile_has_none(server):
    assert (
        "input 'lookup_pool' is not supported by this deployment: "
        "decoding.prompt_lookup.max_pool_tokens of its profile is 0"
    ) in refusal(server, "bls", max_tokens=2, lookup_pool="ours")


@pytest.mark.parametrize("name", ["", "x" * 257, "x" * 10**6, b"\xff\xfe"])
def test_what_is_no_name_is_refused(pooling, name):
    assert "input 'lookup_pool'" in refusal(pooling, "bls", max_tokens=2, lookup_pool=name)
