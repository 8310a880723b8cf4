"""The load generator sends the right requests in the right order, and records the results."""

import threading
from typing import ClassVar

import pytest

from tandem.contract import entry
from tandem.tools.benchmark import load_generator
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.variant import BASELINE, Scenario, Variant
from tandem.tools.client.answer import Answer, AnswerTotals
from tandem.tools.errors import TandemError

DRAFTS = Variant("draft_model", 4)


class ScriptedClient:
    """A client that answers immediately, and records the requests."""

    asked: ClassVar = []

    def __init__(self, url, _=None):
        self.url = url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self, model, inputs):
        self.asked.append((inputs[entry.TEXT_INPUT], inputs[entry.DRAFTER], inputs[entry.STREAM]))
        statistics = {"draft_seconds": 0.25, "target_seconds": 0.5}
        return Answer("x", 2, AnswerTotals(1, 4, 1), "length", 1.0, statistics)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(load_generator, "Client", ScriptedClient)
    monkeypatch.setattr(ScriptedClient, "asked", [])
    return ScriptedClient.asked


def measured(
    concurrencies, streamed=0, seen=lambda _: None, texts="ab", each=None, *, drafts=DRAFTS
):
    prompts = [{entry.TEXT_INPUT: text} for text in texts]
    plan = LoadPlan(
        [Scenario("code", prompts)], [BASELINE, drafts], concurrencies, 8, 2, streamed, {}, each
    )
    with LoadGenerator("url", "bls_stream", plan, seen) as asker:
        return plan, asker.measurements()


def test_the_first_variant_alternates_in_a_single_stream(asked):
    _, measurements = measured([1])
    priming, turns = asked[:4], asked[4:]
    assert len(priming) == 4
    assert [(text, drafter[:1]) for text, drafter, _ in turns] == [
        *(("a", "n"), ("a", "d"), ("b", "d"), ("b", "n")),
        *(("a", "d"), ("a", "n"), ("b", "n"), ("b", "d")),
    ]
    assert [(c.variant, len(c.whole), c.whole[0].engine_seconds) for c in measurements] == [
        (BASELINE, 2, 1.5),
        (DRAFTS, 2, 1.5),
    ]


def test_auto_measures_costs_before_the_first_measured_request(monkeypatch):
    sent = []

    class Recording(ScriptedClient):
        def answer(self, model, inputs):
            sent.append((inputs[entry.TEXT_INPUT], inputs[entry.DRAFTER], inputs[entry.MAX_TOKENS]))
            return super().answer(model, inputs)

    monkeypatch.setattr(load_generator, "Client", Recording)
    name = "hybrid"
    measured([1], drafts=Variant(name))
    assert sent[:4] == [("a", "none", 2), ("a", name, 2), ("b", "none", 2), ("b", name, 8)]


@pytest.mark.parametrize("rejected", [0, 1])
def test_other_streams_end_early_if_one_stream_is_rejected(asked, monkeypatch, rejected):
    """If they continued, the error would appear only after all remaining requests."""
    asks, waits = threading.Event(), threading.Event()

    class Rejecting(ScriptedClient):
        def answer(self, model, inputs):
            if len(asked) < 6:  # priming
                return super().answer(model, inputs)
            asked.append(inputs)
            if self.url == "rejected":
                assert asks.wait(30)
                raise TandemError("no")
            asks.set()
            assert waits.wait(30)
            return Answer("x", 1, AnswerTotals(1, 0, 0), "length", 1.0, {})

    clients = iter([Rejecting("rejected" if number == rejected else "other") for number in (0, 1)])
    monkeypatch.setattr(load_generator, "Client", lambda *_: next(clients))
    plan = LoadPlan(
        [Scenario("code", [{entry.TEXT_INPUT: text} for text in "abcdef"])],
        *([BASELINE], [2], 8, 1, 0, {}, None),
    )
    asker = LoadGenerator("url", "bls_stream", plan)
    end = asker._ending.set
    monkeypatch.setattr(asker._ending, "set", lambda: (end(), waits.set()))
    with pytest.raises(TandemError), asker:
        asker.measurements()
    assert len(asked) == 6 + 2


def test_every_stream_sends_all_prompts_and_streams_the_last_repetitions(asked):
    answered = []
    plan, measurements = measured([1, 3], streamed=1, seen=answered.append)
    assert len(asked) == len(answered) == plan.num_answers
    assert [[len(r.answers) for r in c.whole] for c in measurements] == [
        [2, 2],
        [2, 2],
        [6, 6],
        [6, 6],
    ]
    assert all(len(c.streamed) == 1 for c in measurements)
    assert [stream for *_, stream in asked].count(True) == 2 * (2 + 6)
    baseline, drafts, many, _ = measurements
    assert (drafts.baseline, many.alone, drafts.alone) == (baseline, baseline, None)


@pytest.mark.parametrize(
    ("count", "texts", "expected"),
    [
        (3, "abcdef", "abcdef"),
        (3, "abcd", "abcdab"),  # fewer prompts than streams
        (2, "ab", "abba"),  # never the same prompt in both streams at once
        (2, "a", "aa"),
        (1, "abcdef", "abcdef"),
    ],
)
def test_prompts_are_distributed_over_the_streams(asked, count, texts, expected):
    plan, measurements = measured([count], texts=texts, each=2)
    assert len(asked) == plan.num_answers
    for measurement in measurements:
        for repetition in measurement.whole:
            assert "".join(texts[answer.prompt] for answer in repetition.answers) == expected
