"""What an engine that drafts by itself says of its rounds, whatever it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.metric_updates import updates_of
from tandem.bls.statistics import Statistics
from tandem.bls.timeline import Timeline


@pytest.mark.parametrize(
    ("emitted", "drafted", "accepted", "rounds", "counted"),
    [
        (8, 12, 5, 3, 5),  # three rounds: 5 accepted, 3 of the target's own
        (5, 4, 4, 1, 4),  # all accepted, and the bonus was an end of sequence
        (2, 4, 2, 1, 2),  # it accepted the end of sequence too, and dropped it
        (1, 4, 1, 1, 1),  # at once
        (3, 4, 9, 1, 3),  # more than there was
        (5, 3, -2, 5, 0),
        (5, -3, 2, 5, 0),
    ],
)
def test_rounds_of_an_engine_that_drafts_by_itself(emitted, drafted, accepted, rounds, counted):
    statistics = Statistics()
    statistics.add_own_drafts(emitted, drafted, accepted)
    assert (statistics.num_rounds, statistics.num_accepted_draft_tokens) == (rounds, counted)
    assert statistics.by_drafter["engine"].num_spec_steps == rounds


integers = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.tuples(st.integers(0, 10_000), integers, integers), min_size=1))
def test_no_figure_falls_whatever_an_engine_says(calls):
    statistics = Statistics()
    before = {}
    for call in calls:
        statistics.add_own_drafts(*call)
        counts = dict(updates_of("engine", statistics, Timeline(arrival=0)).counts)
        assert all(value >= before.get(key, 0) for key, value in counts.items())
        before = counts
    assert statistics.num_accepted_draft_tokens <= statistics.num_draft_tokens
