"""Statistics count rounds, including rounds of engines that draft by themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.metrics import sequence_updates
from tandem.bls.statistics import DraftStatistics, Round, Statistics, Timeline, Totals


def test_statistics_add_up_rounds_in_total_and_per_drafter():
    statistics = Statistics(
        num_drafter_failures=5, num_unverified_draft_tokens=7, num_cached_prompt_tokens=3
    )
    statistics.add(Round(4, 2, "draft_model", 0, 6, 0.25, 0.5, 1.0))
    statistics.add(Round(3, 0, "prompt_lookup", target_seconds=2.0))
    statistics.add(Round(num_plain_tokens=8, target_seconds=4.0))
    statistics.add(Round())
    assert statistics.totals == Totals(11, 7, 2, 2 / 7)
    figures = statistics.as_dict()
    rounds = figures.pop("rounds")
    model = {
        "num_spec_steps": 1,
        "num_draft_tokens": 4,
        "num_accepted_draft_tokens": 2,
        "draft_acceptance_rate": 0.5,
        "mean_acceptance_length": 3.0,
        "acceptance_histogram": [0, 0, 1],
    }
    lookup = {
        "num_spec_steps": 1,
        "num_draft_tokens": 3,
        "num_accepted_draft_tokens": 0,
        "draft_acceptance_rate": 0.0,
        "mean_acceptance_length": 1.0,
        "acceptance_histogram": [1],
    }
    assert figures == {
        "num_spec_steps": 2,
        "num_draft_tokens": 7,
        "num_accepted_draft_tokens": 2,
        "draft_acceptance_rate": 2 / 7,
        "mean_acceptance_length": 2.0,
        "acceptance_histogram": [1, 0, 1],
        "num_rounds": 11,
        "num_drafter_failures": 5,
        "num_unverified_draft_tokens": 7,
        "num_cached_prompt_tokens": 3,
        "stop_string": None,
        "draft_seconds": 0.5,
        "target_seconds": 7.0,
        "by_drafter": {"draft_model": model, "prompt_lookup": lookup},
        "draft_ahead": {
            "num_calls": 0,
            "num_hits": 0,
            "hits_by_accepted": [],
            "num_branches": 0,
            "num_wasted_branches": 0,
            "seconds_saved": 0.0,
        },
        "guide": None,
    }
    assert len(rounds) == 4
    assert rounds[0] == {
        "num_draft_tokens": 4,
        "num_accepted_tokens": 2,
        "drafter": "draft_model",
        "num_plain_tokens": 0,
        "planned_tokens": 6,
        "stop_probability": 0.25,
        "draft_seconds": 0.5,
        "target_seconds": 1.0,
        "num_branches": 0,
        "drafted_ahead": False,
        "seconds_saved": 0.0,
    }


def test_draft_ahead_hits_are_grouped_by_previously_accepted_tokens():
    statistics = Statistics()
    for round_ in (
        Round(4, 4, "draft_model"),
        Round(4, 2, "draft_model", num_branches=8, drafted_ahead=True, seconds_saved=0.25),
        Round(2, 0, "draft_model", num_branches=6),
        Round(4, 4, "prompt_lookup"),
        Round(4, 1, "draft_model", num_branches=8, drafted_ahead=True, seconds_saved=0.5),
    ):
        statistics.add(round_)
    statistics.ahead.num_calls = 4
    assert statistics.as_dict()["draft_ahead"] == {
        "num_calls": 4,
        "num_hits": 2,
        "hits_by_accepted": [0, 0, 0, 0, 2],
        "num_branches": 22,
        "num_wasted_branches": 20,
        "seconds_saved": 0.75,
    }


def test_statistics_without_drafts_are_zero():
    nothing = DraftStatistics()
    assert (nothing.draft_acceptance_rate, nothing.mean_acceptance_length) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("emitted", "drafted", "accepted", "rounds", "counted"),
    [
        (8, 12, 5, 3, 5),  # three rounds: 5 accepted tokens, 3 target tokens
        (5, 4, 4, 1, 4),  # all drafts accepted; the bonus token was an end of sequence
        (2, 4, 2, 1, 2),  # the engine accepted and dropped an end of sequence
        (1, 4, 1, 1, 1),  # the first draft token was the end of sequence
        (3, 4, 9, 1, 3),  # more accepted tokens than possible
        (5, 3, -2, 5, 0),
        (5, -3, 2, 5, 0),
    ],
)
def test_rounds_of_a_self_drafting_engine_are_counted(emitted, drafted, accepted, rounds, counted):
    statistics = Statistics()
    statistics.add_engine_drafts(emitted, drafted, accepted)
    assert (statistics.num_rounds, statistics.num_accepted_draft_tokens) == (rounds, counted)
    assert statistics.by_drafter["engine"].num_spec_steps == rounds


integers = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.tuples(st.integers(0, 10_000), integers, integers), min_size=1))
def test_counters_never_decrease_for_any_engine_statistics(calls):
    statistics = Statistics()
    before = {}
    for call in calls:
        statistics.add_engine_drafts(*call)
        counts = dict(sequence_updates("engine", statistics, Timeline(arrival=0)).counts)
        assert all(value >= before.get(key, 0) for key, value in counts.items())
        before = counts
    assert statistics.num_accepted_draft_tokens <= statistics.num_draft_tokens
