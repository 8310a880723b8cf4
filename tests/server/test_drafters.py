"""Prompt lookup and hybrid drafting on the live server: the control's text, and who earned it."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from checkpoints import write_qwen2, write_tokenizer
from entries import ask, ask_one, refusal
from metrics import Change
from prompts import COMPLETIONS, EDITS
from scale import first_of

from tandem.tools.profiles import deployment

PROMPTS = COMPLETIONS[-52:]
LENGTH = 20
COPYING = "def add(a, b):\n    return a + b\n\n" * 3 + "def add(a, b):\n"


@pytest.fixture(scope="module")
def control(server):
    return answers_to(server, "ensemble")


def answers_to(server, model="bls", **values):
    batches = [PROMPTS[at : at + 26] for at in range(0, len(PROMPTS), 26)]
    asked = partial(ask, server, model, max_tokens=LENGTH, **values)
    with ThreadPoolExecutor() as pool:
        return [answer for answers in pool.map(asked, batches) for answer in answers]


@pytest.mark.parametrize("drafter", ["prompt_lookup", "hybrid"])
@pytest.mark.parametrize("num_tokens", first_of(10, 4))
@pytest.mark.parametrize("ngram", first_of(2, 1, 3, 4))
def test_greedy_text_is_the_controls(server, control, drafter, num_tokens, ngram):
    answers = answers_to(
        server,
        drafter=drafter,
        prompt_lookup_num_tokens=num_tokens,
        max_matching_ngram_size=ngram,
    )
    assert len(answers) >= 50
    assert [a.ids for a in answers] == [a.ids for a in control]
    assert [a.text for a in answers] == [a.text for a in control]
    assert sum(a.number("total_accepted_draft_tokens") for a in answers) > 0


@pytest.mark.parametrize("drafter", ["prompt_lookup", "hybrid"])
def test_a_seed_gives_one_text_with_any_drafter(server, drafter):
    values = {"max_tokens": LENGTH, "seed": 7, "temperature": 0.7}
    expected = [a.ids for a in ask(server, "ensemble", PROMPTS[:8], **values)]
    answers = ask(server, "bls", PROMPTS[:8], drafter=drafter, **values)
    assert [a.ids for a in answers] == expected


def test_what_can_be_copied_takes_half_the_rounds_or_less(server):
    assert len(EDITS) >= 12
    answers = ask(server, "bls", EDITS, max_tokens=96, drafter="prompt_lookup")
    tokens = sum(len(answer.ids) for answer in answers)
    assert tokens >= 2.0 * sum(answer.number("num_rounds") for answer in answers)


def statistics_of(server, **values):
    outputs = ("text_output", "spec_decode_statistics")
    answer = ask_one(server, "bls", COPYING, outputs=outputs, max_tokens=64, **values)
    return json.loads(answer.outputs["spec_decode_statistics"][0])


def test_statistics_say_which_drafter_earned_what(server):
    statistics = statistics_of(server, drafter="hybrid")
    earned = statistics["by_drafter"]
    assert "prompt_lookup" in earned
    for key in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert statistics[key] == sum(figures[key] for figures in earned.values())


def test_metrics_are_counted_under_the_drafter_that_proposed(server):
    change = Change(server)
    earned = statistics_of(server, drafter="hybrid")["by_drafter"]
    change.until_ended(1)
    for drafter in ("prompt_lookup", "draft_model"):
        rounds = earned.get(drafter, {}).get("num_spec_steps", 0)
        assert change.of("spec_decode_num_drafts_total", drafter=drafter) == rounds


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"prompt_lookup_num_tokens": 17},
            "'prompt_lookup_num_tokens': 17 given, must lie in 1..16",
        ),
        ({"max_matching_ngram_size": 0}, "'max_matching_ngram_size': 0 given, must lie in 1..8"),
        (
            {"use_draft_logits": True},
            "'use_draft_logits' needs 'drafter' to be draft_model or hybrid",
        ),
        (
            {"drafter": "draft_model", "prompt_lookup_num_tokens": 4},
            "'prompt_lookup_num_tokens' needs 'drafter' to be prompt_lookup or hybrid",
        ),
    ],
)
def test_what_a_drafter_cannot_honour_is_refused_by_name(server, values, reason):
    assert reason in refusal(
        server, "bls", **{"drafter": "prompt_lookup", "max_tokens": 4, **values}
    )


def test_a_target_without_a_draft_is_served_by_lookup(serve, tmp_path):
    write_qwen2(tmp_path, write_tokenizer(tmp_path), layers=2)
    server = serve(deployment.for_checkpoints(tmp_path, None))
    answer = ask_one(server, "bls", COPYING, max_tokens=60)
    assert answer.ids == ask_one(server, "ensemble", COPYING, max_tokens=60).ids
    assert answer.number("total_draft_tokens") > 0
    assert "has prompt_lookup, none" in refusal(server, "bls", drafter="draft_model", max_tokens=2)
