"""Metrics add up over all requests and entries, and show that no token is computed twice."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from entries import OUTPUTS, ask, ask_one, stream, streaming
from live_triton import eventually, memory_bytes
from metrics import PARTS, Change, computed, scrape, settle, total
from scale import first_of

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
    """Metric changes and answers of six concurrent requests, two of which have two prompts."""
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


def test_counters_add_up_over_concurrent_requests_and_all_entries(crowd):
    change, answers, lengths = crowd
    for metric, output in (
        ("spec_decode_num_draft_tokens_total", "total_draft_tokens"),
        ("spec_decode_num_accepted_tokens_total", "total_accepted_draft_tokens"),
        ("tandem_rounds_total", "num_rounds"),
    ):
        assert change.of(metric) == sum(answer.number(output) for answer in answers)
    assert change.of("tandem_output_tokens_total") == sum(lengths)
    baseline = sum(lengths[4:6])
    assert change.of("tandem_output_tokens_total", drafter="none") == baseline
    # In some requests, the last of the 21 tokens takes a round without a draft.
    drafts = change.of("spec_decode_num_drafts_total")
    assert 0 < drafts <= sum(int(answer.rounds) for answer in answers) - baseline


def test_each_histogram_has_one_observation_per_sequence(crowd):
    change, answers, _ = crowd
    for histogram in HISTOGRAMS:
        assert change.of(f"{histogram}_count") == len(answers)
        assert change.of(f"{histogram}_bucket", le="+Inf") == len(answers)
        assert change.of(f"{histogram}_count", drafter="none") == 2
        assert change.of(f"{histogram}_sum") > 0


def test_parts_of_a_round_add_up_to_the_whole_round(crowd):
    change, answers, _ = crowd
    for part in PARTS:
        assert change.of("tandem_round_part_seconds_count", part=part) == len(answers)
    parts = change.parts("tandem_round_part_seconds_sum")
    assert sum(parts.values()) == pytest.approx(change.of("tandem_round_seconds_sum"))
    assert change.parts(drafter="none")["draft"] == 0
    assert min(parts.values()) > 0


def test_cancelled_requests_are_counted(server, change):
    # The target is late, so the answer can't end before the client leaves.
    with (
        server.faults.inject("target", "late"),
        streaming(server, "def leave(", max_tokens=3600, end_id=-1) as chunks,
    ):
        next(chunks)
    change.until_ended(1)
    assert change.of("tandem_time_to_first_token_seconds_count") == 1
    rounds, tokens = (change.of(f"tandem_{name}_total") for name in ("rounds", "output_tokens"))
    assert 0 < rounds <= tokens < 3600
    assert sum(change.parts().values()) > 0


def test_every_drafter_and_engine_has_metrics_from_the_start(server, embedded):
    samples = {(name, dict(labels).get("drafter")) for name, labels in scrape(server)}
    assert {("tandem_rounds_total", drafter) for drafter in embedded.drafters} <= samples
    lost = {dict(at)["engine"] for name, at in scrape(server) if name == "tandem_abandoned_calls"}
    assert lost == {"draft", "target"}


def test_the_server_uses_less_than_1_500_mb_of_memory(server):
    assert memory_bytes(server.processes) < 1.5 * 10**9


def test_gauges_of_an_idle_server_are_zero(server):
    assert eventually(lambda: total(server, "tandem_requests_running") == 0)
    assert total(server, "tandem_requests_waiting") == 0
    assert eventually(lambda: total(server, "tandem_kv_reserved_ratio") == 0)


CODE = "class Reader:\n    def read(self, path):\n" * 4


@pytest.mark.parametrize("draft_len", first_of(4, 1, 8))
def test_a_round_computes_at_most_its_draft_plus_one_token(server, draft_len):
    settle(server)
    before = {model: computed(server, model) for model in ("target", "draft")}
    answer = ask_one(
        server,
        "bls",
        f"# {draft_len}\n{CODE}",
        max_tokens=48,
        num_draft_tokens=draft_len,
        return_num_input_tokens=True,
        outputs=(*OUTPUTS, "num_input_tokens"),
    )
    spent = {model: computed(server, model, at + 1) - at for model, at in before.items()}
    rounds, drafts = answer.rounds, answer.draft_tokens
    length = answer.number("num_input_tokens")
    assert rounds > 1
    # The target computes the prompt once. In each round, it computes the draft and the previous
    # correction or bonus token.
    assert spent["target"] <= length + drafts + rounds
    # The draft engine takes one step per draft token, and one more after a full acceptance.
    assert spent["draft"] <= length + (draft_len + 1) * rounds


def test_a_repeated_prompt_reuses_the_kv_cache(server, change):
    names = ("text_output", "kv_cache_reused_blocks")
    ask_one(server, "bls", f"# again\n{CODE}", max_tokens=64)
    values = {"max_tokens": 8, "return_perf_metrics": True}
    again = ask_one(server, "bls", f"# again\n{CODE}", outputs=names, **values)
    assert again.number("kv_cache_reused_blocks") >= 1
    change.until_ended(2)
    assert change.of("tandem_recomputed_tokens_total") == 0
