"""The emulated engines behind a live server: one text with and without drafts, alpha accepted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from entries import OUTPUTS, ask, ask_one, stream
from metrics import Change, computed

from tandem.tools.profiles import deployment

from .conftest import serving
from .test_engines import pages_of_logits

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
ALPHA = 0.8
PROMPTS = [f"def number_{n}(" for n in range(16)]
LENGTH = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of emulated engines that answer at once."""
    with serving(deployment.load(PROFILE), tmp_path_factory.mktemp("emulated")) as running:
        yield running


@pytest.fixture(scope="module")
def control(server):
    return ask(server, "ensemble", PROMPTS, max_tokens=LENGTH)


@pytest.mark.parametrize("draft_len", [1, 4, 10])
def test_greedy_text_is_the_controls_and_alpha_of_the_drafts_is_accepted(
    server, control, draft_len
):
    answers = ask(server, "bls", PROMPTS, max_tokens=LENGTH, num_draft_tokens=draft_len)
    assert [a.ids for a in answers] == [a.ids for a in control]
    assert [a.text for a in answers] == [a.text for a in control]
    emitted = sum(len(a.ids) for a in answers) / sum(a.number("num_rounds") for a in answers)
    expected = sum(ALPHA**n for n in range(draft_len + 1))
    assert emitted == pytest.approx(expected, rel=0.1)


def test_prompts_have_different_texts_that_never_end(control):
    assert len({tuple(a.ids) for a in control}) == len(PROMPTS)
    assert {a.finish_reason for a in control} == {"length"}
    assert {len(a.ids) for a in control} == {LENGTH}


def test_sampled_text_is_the_controls_by_ids_and_alpha_is_accepted(server):
    values = {"max_tokens": LENGTH, "temperature": 1.0, "top_p": 1.0, "seed": 3}
    expected = ask(server, "ensemble", PROMPTS, **values)
    answers = ask(server, "bls", PROMPTS, num_draft_tokens=4, **values)
    assert [a.ids for a in answers] == [a.ids for a in expected]
    assert rate(answers) == pytest.approx(acceptance(4), rel=0.1)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 1.0, "seed": 3}])
@pytest.mark.parametrize("drafter", ["draft_model", "hybrid"])
def test_text_is_the_controls_when_drafted_ahead(server, drafter, sampling):
    values = {"max_tokens": LENGTH, "min_tokens": 9, **sampling}
    expected = ask(server, "ensemble", PROMPTS, **values)
    outputs = (*OUTPUTS, "spec_decode_statistics")
    answers = ask(
        server, "bls", PROMPTS, draft_ahead="true", drafter=drafter, outputs=outputs, **values
    )
    assert [a.ids for a in answers] == [a.ids for a in expected]
    told = [json.loads(a.number("spec_decode_statistics")) for a in answers]
    assert all(statistics["draft_ahead"]["num_calls"] for statistics in told)
    assert sum(statistics["num_drafter_failures"] for statistics in told) == 0


def test_branches_are_there_when_the_target_answers(in_time):
    outputs = (*OUTPUTS, "spec_decode_statistics")
    values = {"max_tokens": LENGTH, "num_draft_tokens": 4, "draft_ahead": "true"}
    expected = ask_one(in_time, "ensemble", PROMPTS[0], max_tokens=LENGTH)
    change = Change(in_time)
    answer = ask_one(in_time, "bls", PROMPTS[0], outputs=outputs, **values)
    assert answer.ids == expected.ids
    statistics = json.loads(answer.number("spec_decode_statistics"))
    ahead, rounds = statistics["draft_ahead"], statistics["rounds"]
    assert ahead["num_hits"] == sum(round_["drafted_ahead"] for round_ in rounds) > 10
    assert ahead["num_branches"] == ahead["num_wasted_branches"] + ahead["num_hits"]
    # A hit made no call of the draft, whose branches were drafted while the target worked.
    assert all(not round_["draft_seconds"] for round_ in rounds if round_["drafted_ahead"])
    change.until_ended(1)
    for name in ("calls", "branches", "wasted_branches", "hits"):
        assert change.of(f"tandem_draft_ahead_{name}_total") == ahead[f"num_{name}"]
    assert change.of("tandem_draft_ahead_saved_seconds_total") > 0


def test_branches_are_verified_by_probability_and_their_logits_take_few_pages(in_time):
    """For a round's branches, for a draft behind a miss, and for what is given back next.

    Without giving back there would be a page for each call that no round read.
    """
    values = {
        "max_tokens": LENGTH,
        "num_draft_tokens": 4,
        "draft_ahead": "true",
        "temperature": 1.0,
        "top_p": 1.0,
        "use_draft_logits": True,
    }
    outputs = (*OUTPUTS, "spec_decode_statistics")
    answers = [ask_one(in_time, "bls", text, outputs=outputs, **values) for text in PROMPTS[:8]]
    told = [json.loads(answer.number("spec_decode_statistics")) for answer in answers]
    hits = sum(statistics["draft_ahead"]["num_hits"] for statistics in told)
    calls = sum(statistics["draft_ahead"]["num_calls"] for statistics in told)
    assert hits > 40
    assert calls - hits > 40
    assert sum(statistics["num_drafter_failures"] for statistics in told) == 0
    accepted = sum(statistics["num_accepted_draft_tokens"] for statistics in told)
    drafted = sum(statistics["num_draft_tokens"] for statistics in told)
    assert accepted / drafted == pytest.approx(acceptance(4), rel=0.2)
    assert 0 < pages_of_logits(in_time) <= 16  # a few where branches come late; not one each call


def test_a_seed_repeats_a_text_by_probability_drafted_ahead_or_not(in_time):
    values = {"max_tokens": 60, "temperature": 0.9, "use_draft_logits": True, "seed": 5}
    texts = {
        tuple(ask_one(in_time, "bls", PROMPTS[0], draft_ahead=ahead, **values).ids)
        for ahead in ("true", "false", "true", "auto")
    }
    assert len(texts) == 1


@pytest.fixture(scope="module")
def in_time(tmp_path_factory):
    """A server whose draft engine has drafted long before the target has verified."""
    planned = deployment.load(PROFILE)
    target = replace(planned.target, parameters={**planned.target.parameters, "step_ms": "20"})
    with serving(replace(planned, target=target), tmp_path_factory.mktemp("in_time")) as running:
        yield running


def test_alpha_is_accepted_by_logits(server):
    values = {
        "max_tokens": LENGTH,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 3,
        "use_draft_logits": True,
    }
    answers = ask(server, "bls", PROMPTS, num_draft_tokens=4, **values)
    assert rate(answers) == pytest.approx(acceptance(4), rel=0.1)


def test_stream_is_the_controls_text(server, control):
    chunks = stream(server, PROMPTS[0], max_tokens=LENGTH)
    assert "".join(chunk.text for chunk in chunks) == control[0].text
    alone = stream(server, PROMPTS[0], max_tokens=LENGTH, drafter="none")
    assert [token for chunk in alone for token in chunk.ids] == control[0].ids


def test_min_tokens_and_stop_words_hold(server, control):
    stop = control[0].text[20:24]
    answer = ask_one(server, "bls", PROMPTS[0], max_tokens=LENGTH, stop_words=[stop], min_tokens=4)
    assert answer.text == control[0].text[: control[0].text.index(stop)]


@pytest.fixture(scope="module")
def second_end(control):
    """A token of the control's text that ends it where it is an end of sequence as well."""
    return control[0].ids[10]


@pytest.fixture(scope="module")
def with_two_ends(second_end, tmp_path_factory):
    planned = deployment.load(PROFILE)
    planned = replace(planned, end_ids=(*planned.end_ids, second_end))
    with serving(planned, tmp_path_factory.mktemp("ends")) as running:
        yield running


@pytest.mark.parametrize("drafter", ["none", "draft_model", "prompt_lookup"])
def test_the_second_end_of_sequence_ends_the_answer_and_the_engines_work(
    with_two_ends, control, second_end, drafter
):
    before = computed(with_two_ends, "target")
    options = {"drafter": drafter, "return_num_input_tokens": True}
    options["outputs"] = (*OUTPUTS, "num_input_tokens")
    answer = ask_one(with_two_ends, "bls", PROMPTS[0], max_tokens=LENGTH, **options)
    kept = control[0].ids.index(second_end)
    assert (answer.ids, answer.finish_reason) == (control[0].ids[:kept], "stop")
    if drafter == "none":
        prompt = answer.number("num_input_tokens")
        assert computed(with_two_ends, "target") - before <= prompt + kept


def rate(answers) -> float:
    drafted = sum(a.number("total_draft_tokens") for a in answers)
    return sum(a.number("total_accepted_draft_tokens") for a in answers) / drafted


def acceptance(draft_len: int) -> float:
    """The share of drafts that is accepted: the accepted ones end at the first that is not."""
    return sum(ALPHA**n for n in range(1, draft_len + 1)) / draft_len
