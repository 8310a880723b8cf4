"""Emulated engines have the expected acceptance rate, and drafts don't change their output."""

import json

import pytest
from entries import OUTPUTS, ask, ask_one, said, stream
from metrics import Change
from scale import first_of

from tandem.contract import entry

ALPHA = 0.8
PROMPTS = [f"def number_{n}(" for n in range(8)]
LENGTH = 120
GREEDY = {"max_tokens": LENGTH}
SAMPLED = GREEDY | {"temperature": 1.0, "top_p": 1.0, "seed": 3}
WITH_STATISTICS = (*OUTPUTS, entry.SPEC_DECODE_STATISTICS)


@pytest.fixture(scope="module")
def baseline(emulated):
    return ask(emulated, "ensemble", PROMPTS, **GREEDY)


@pytest.fixture
def in_time(emulated):
    """A server whose draft engine finishes its branches before the target responds."""
    with emulated.faults.inject("target", "slow"):
        yield emulated


def statistics_of(answer):
    return json.loads(answer.number(entry.SPEC_DECODE_STATISTICS))


@pytest.mark.parametrize("draft_len", first_of(4, 10))
def test_greedy_output_equals_the_baseline_and_alpha_sets_acceptance(emulated, baseline, draft_len):
    answers = ask(emulated, "bls", PROMPTS, num_draft_tokens=draft_len, **GREEDY)
    assert said(answers) == said(baseline)
    emitted = sum(len(a.ids) for a in answers) / sum(a.rounds for a in answers)
    assert emitted == pytest.approx(sum(ALPHA**n for n in range(draft_len + 1)), rel=0.1)


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [("draft_model", GREEDY), ("hybrid", SAMPLED)],
    ids=["greedy", "sampled"],
)
def test_drafting_ahead_does_not_change_the_output(emulated, drafter, sampling):
    values = {"min_tokens": 9, **sampling}
    expected = ask(emulated, "ensemble", PROMPTS, **values)
    values |= {"draft_ahead": "true", "drafter": drafter, "outputs": WITH_STATISTICS}
    answers = ask(emulated, "bls", PROMPTS, **values)
    assert said(answers) == said(expected)
    all_statistics = [statistics_of(answer) for answer in answers]
    assert any(statistics["draft_ahead"]["num_calls"] for statistics in all_statistics)
    assert sum(statistics["num_drafter_failures"] for statistics in all_statistics) == 0


def test_branches_are_ready_when_the_target_responds(in_time):
    values = {"num_draft_tokens": 4, "draft_ahead": "true", **GREEDY}
    expected = ask_one(in_time, "ensemble", PROMPTS[0], **GREEDY)
    change = Change(in_time)
    answer = ask_one(in_time, "bls", PROMPTS[0], outputs=WITH_STATISTICS, **values)
    assert answer.ids == expected.ids
    statistics = statistics_of(answer)
    ahead, rounds = statistics["draft_ahead"], statistics["rounds"]
    assert ahead["num_hits"] == sum(round_["drafted_ahead"] for round_ in rounds) > 0
    assert ahead["num_branches"] == ahead["num_wasted_branches"] + ahead["num_hits"]
    # After a hit, the loop doesn't call the draft engine.
    assert all(not round_["draft_seconds"] for round_ in rounds if round_["drafted_ahead"])
    change.until_ended(1)
    for name in ("calls", "branches", "wasted_branches", "hits"):
        assert change.of(f"tandem_draft_ahead_{name}_total") == ahead[f"num_{name}"]
    assert change.of("tandem_draft_ahead_saved_seconds_total") > 0


def test_emulated_engines_support_streams_stop_words_and_min_tokens(emulated, baseline):
    for drafter in ("draft_model", "none"):
        chunks = stream(emulated, PROMPTS[0], drafter=drafter, **GREEDY)
        assert "".join(chunk.text for chunk in chunks) == baseline[0].text
        assert [token for chunk in chunks for token in chunk.ids] == baseline[0].ids
    stop = baseline[0].text[20:24]
    answer = ask_one(emulated, "bls", PROMPTS[0], stop_words=[stop], min_tokens=4, **GREEDY)
    assert answer.text == baseline[0].text[: baseline[0].text.index(stop)]
