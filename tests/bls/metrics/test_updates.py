"""Each sequence updates the metrics when it ends."""

import pytest

from tandem.bls.metrics import key_of, sequence_updates, zero_updates
from tandem.bls.statistics import Round, Statistics, Timeline

MS = 10**6  # nanoseconds

# The sequence waits 5 ms and decodes for 100 ms: 3 tokens after 40 ms, 2 more after 100 ms.
TIMELINE = Timeline(
    arrival=1 * MS,
    first_scheduled=6 * MS,
    first_token=46 * MS,
    last_token=106 * MS,
    last_delivery=106 * MS,
    num_first_tokens=3,
    num_tokens=5,
)
ROUNDS = [
    Round(4, 2, "draft_model", draft_seconds=0.01, target_seconds=0.02),
    Round(4, 1, "draft_model", draft_seconds=0.02, target_seconds=0.03),
]


@pytest.fixture
def statistics():
    made = Statistics()
    for round_ in ROUNDS:
        made.add(round_)
    return made


def counts(updates, name, **labels):
    return updates.counts[key_of(name, **labels)]


def observed(updates, name, **labels):
    return [value for key, value in updates.observations if key == key_of(name, **labels)]


def test_orchestration_time_is_the_time_outside_the_engines(statistics):
    updates = sequence_updates("draft_model", statistics, TIMELINE)
    parts = {
        part: counts(updates, "tandem_round_part_seconds_total", drafter="draft_model", part=part)
        for part in ("draft", "target", "orchestration")
    }
    assert parts == pytest.approx({"draft": 0.03, "target": 0.05, "orchestration": 0.02})


def test_histograms_observe_one_mean_per_sequence(statistics):
    updates = sequence_updates("draft_model", statistics, TIMELINE)

    def of(name, **labels):
        return observed(updates, name, drafter="draft_model", **labels)

    assert of("tandem_time_to_first_token_seconds") == [pytest.approx(0.045)]
    assert of("tandem_inter_token_latency_seconds") == [pytest.approx(0.03)]
    assert of("tandem_round_seconds") == [pytest.approx(0.05)]
    assert of("tandem_round_part_seconds", part="target") == [pytest.approx(0.025)]
    assert len(updates.observations) == 6


def test_accepted_tokens_are_counted_by_position(statistics):
    updates = sequence_updates("draft_model", statistics, TIMELINE)
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    assert [
        counts(updates, name, drafter="draft_model", position=position) for position in "01"
    ] == [2, 1]
    assert key_of(name, drafter="draft_model", position="2") not in updates.counts


def test_sequence_counters_are_labeled_with_the_requested_drafter():
    statistics = Statistics(
        num_drafter_failures=2, num_unverified_draft_tokens=3, num_recomputed_tokens=4
    )
    updates = sequence_updates("hybrid", statistics, TIMELINE)
    assert {key: value for key, value in updates.counts.items() if value in (5, 2, 3, 4)} == {
        key_of(f"tandem_{name}_total", drafter="hybrid"): value
        for name, value in {
            "output_tokens": 5,
            "drafter_failures": 2,
            "unverified_draft_tokens": 3,
            "recomputed_tokens": 4,
        }.items()
    }


def test_draft_counters_are_labeled_with_the_proposing_drafter(statistics):
    updates = sequence_updates("hybrid", statistics, TIMELINE)
    assert {
        name: counts(updates, f"spec_decode_num_{name}_total", drafter="draft_model")
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    } == {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 3}


@pytest.mark.parametrize("drafter", ["none", "hybrid"])
def test_draft_counters_do_not_exist_for_drafters_without_drafts(drafter):
    assert not any(name.startswith("spec_decode") for name, _ in zero_updates(drafter).counts)
    assert any(name.startswith("spec_decode") for name, _ in zero_updates("engine").counts)


def test_histograms_skip_a_sequence_that_failed_before_its_first_token():
    timeline = Timeline(arrival=1 * MS)
    timeline.mark_scheduled()
    updates = sequence_updates("none", Statistics(num_drafter_failures=1), timeline)
    assert updates.observations == []
    assert counts(updates, "tandem_drafter_failures_total", drafter="none") == 1
    assert sum(updates.counts.values()) == 1


def test_an_empty_answer_counts_a_round_but_no_first_token():
    statistics = Statistics()
    statistics.add(Round(num_draft_tokens=4, drafter="draft_model", target_seconds=0.001))
    timeline = Timeline(arrival=1)
    timeline.mark_scheduled()
    timeline.record_delivery(0)  # only the end of sequence
    updates = sequence_updates("draft_model", statistics, timeline)
    assert len(observed(updates, "tandem_round_seconds", drafter="draft_model")) == 1
    assert not observed(updates, "tandem_time_to_first_token_seconds", drafter="draft_model")
