"""The metrics on /metrics are those of all requests, through either entry."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from entries import OUTPUTS, ask, ask_one, stream, streaming
from metrics import PARTS, Change, scrape, total, until

from tandem.contract import entry

HISTOGRAMS = (
    "tandem_time_to_first_token_seconds",
    "tandem_inter_token_latency_seconds",
    "tandem_round_seconds",
)


@pytest.fixture
def change(server):
    return Change(server)


@pytest.fixture(scope="module")
def crowd(server):
    """Six requests at once, two of them with two prompts; what they changed, and the answers."""
    change = Change(server)
    values = {"max_tokens": 21, "end_id": -1}
    with ThreadPoolExecutor(6) as pool:
        plain = pool.map(lambda n: ask(server, "bls", [f"# {n}", f"#{n}"], **values), "ab")
        control = pool.map(lambda n: ask(server, "ensemble", n, max_tokens=40, end_id=-1), "cd")
        chunks = pool.map(lambda n: stream(server, f"# {n}", **values), "ef")
        answers = [answer for answers in (*plain, *control) for answer in answers]
        streams = list(chunks)
    lengths = [len(a.ids) for a in answers] + [sum(len(c.ids) for c in s) for s in streams]
    answers += [stream[-1] for stream in streams]
    change.until_ended(len(answers))
    return change, answers, lengths


@pytest.mark.parametrize(
    ("metric", "output"),
    [
        ("spec_decode_num_draft_tokens_total", "total_draft_tokens"),
        ("spec_decode_num_accepted_tokens_total", "total_accepted_draft_tokens"),
        ("tandem_rounds_total", "num_rounds"),
    ],
)
def test_counters_add_up_over_concurrent_requests_and_all_entries(crowd, metric, output):
    change, answers, _ = crowd
    assert change.of(metric) == sum(answer.number(output) for answer in answers)


def test_tokens_add_up_by_drafter(crowd):
    change, answers, lengths = crowd
    assert change.of("tandem_output_tokens_total") == sum(lengths)
    control = sum(lengths[4:6])
    assert change.of("tandem_output_tokens_total", drafter="none") == control
    # The last token of 21 is a plain step in some requests: it is a round without a draft.
    drafts = change.of("spec_decode_num_drafts_total")
    assert 0 < drafts <= sum(int(answer.number("num_rounds")) for answer in answers) - control


@pytest.mark.parametrize("histogram", HISTOGRAMS)
def test_each_histogram_observes_once_a_sequence(crowd, histogram):
    change, answers, _ = crowd
    assert change.of(f"{histogram}_count") == len(answers)
    assert change.of(f"{histogram}_bucket", le="+Inf") == len(answers)
    assert change.of(f"{histogram}_count", drafter="none") == 2
    assert change.of(f"{histogram}_sum") > 0


def test_parts_of_a_round_sum_to_the_whole(crowd):
    change, answers, _ = crowd
    for part in PARTS:
        assert change.of("tandem_round_part_seconds_count", part=part) == len(answers)
    parts = change.parts("tandem_round_part_seconds_sum")
    assert sum(parts.values()) == pytest.approx(change.of("tandem_round_seconds_sum"))
    assert change.parts(drafter="none")["draft"] == 0
    assert min(parts.values()) > 0


def test_parts_are_the_engines_seconds_and_the_rest_of_a_sequences_time(server, change):
    milestones = (entry.FIRST_SCHEDULED_TIME_NS, entry.LAST_TOKEN_TIME_NS)
    wanted = (*OUTPUTS, *milestones, entry.SPEC_DECODE_STATISTICS)
    values = {"max_tokens": 24, "end_id": -1, "return_perf_metrics": True}
    answer = ask_one(server, "bls", "def part(", outputs=wanted, **values)
    change.until_ended(1)
    start, end = (int(answer.number(name)) for name in milestones)
    statistics = json.loads(answer.outputs[entry.SPEC_DECODE_STATISTICS][0])
    parts = change.parts(drafter="draft_model")
    assert sum(parts.values()) == pytest.approx((end - start) / 1e9)
    assert parts["draft"] == pytest.approx(statistics["draft_seconds"])
    assert parts["target"] == pytest.approx(statistics["target_seconds"])


def test_a_cancelled_request_counts_what_it_did(server, change):
    with streaming(server, "def leave(", max_tokens=900, end_id=-1) as chunks:
        next(chunks)
    change.until_ended(1)
    assert change.of("tandem_time_to_first_token_seconds_count") == 1
    rounds, tokens = (change.of(f"tandem_{name}_total") for name in ("rounds", "output_tokens"))
    assert 0 < rounds <= tokens < 900
    assert sum(change.parts().values()) > 0


def test_accepted_tokens_by_position_add_up(server, change):
    answer = ask_one(server, "bls", "def main():", max_tokens=24)
    change.until_ended(1)
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    assert change.of(name) == answer.number("total_accepted_draft_tokens") > 0
    assert change.of(name, position="0") >= change.of(name, position="1")


def test_every_drafter_and_engine_is_there_before_it_did_anything(server, embedded):
    samples = {(name, dict(labels).get("drafter")) for name, labels in scrape(server)}
    assert {("tandem_rounds_total", drafter) for drafter in embedded.drafters} <= samples
    lost = {dict(at)["engine"] for name, at in scrape(server) if name == "tandem_abandoned_calls"}
    assert lost == {"draft", "target"}


def test_nothing_runs_when_nothing_is_asked(server):
    until(lambda: total(server, "tandem_requests_running") == 0)
    assert total(server, "tandem_requests_waiting") == 0
    until(lambda: total(server, "tandem_kv_reserved_ratio") == 0)
