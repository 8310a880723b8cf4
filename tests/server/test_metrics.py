"""The figures on /metrics are those of all requests, through either entry."""

import time
from concurrent.futures import ThreadPoolExecutor

from entries import ask_one, stream
from metrics import total

NAMES = {
    "num_rounds": "spec_decode_num_drafts_total",
    "total_draft_tokens": "spec_decode_num_draft_tokens_total",
    "total_accepted_draft_tokens": "spec_decode_num_accepted_tokens_total",
}


def totals(server):
    return [total(server, name, model="bls_stream") for name in NAMES.values()]


def settled(server):
    """The totals once earlier requests are counted: figures follow an answer within moments."""
    read = [totals(server)]

    def at_rest():
        read.append(totals(server))
        return len(read) > 5 and all(figures == read[-1] for figures in read[-5:])

    until(at_rest)
    return read[-1]


def until(condition):
    """Wait for what is published a moment after the answer."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_metrics_add_up_over_concurrent_requests_and_both_entries(server):
    before = settled(server)
    with ThreadPoolExecutor(6) as pool:
        plain = list(pool.map(lambda n: ask_one(server, "bls", f"# {n}", max_tokens=21), range(3)))
        streams = list(pool.map(lambda n: stream(server, f"# {n}s", max_tokens=21)[-1], range(3)))
    answers = plain + streams
    # The last token of 21 is a plain step in some requests: it is a round without a draft.
    drafts, accepted = (
        sum(int(answer.number(name)) for answer in answers)
        for name in ("total_draft_tokens", "total_accepted_draft_tokens")
    )
    until(lambda: totals(server)[1] - before[1] == drafts)
    assert totals(server)[2] - before[2] == accepted
    assert 0 < totals(server)[0] - before[0] <= sum(int(a.number("num_rounds")) for a in answers)


def test_accepted_tokens_by_position_add_up(server):
    ask_one(server, "bls", "def main():", max_tokens=24)
    name = "spec_decode_num_accepted_tokens"
    until(lambda: total(server, f"{name}_per_pos_total") == total(server, f"{name}_total"))
    first, second = (total(server, f"{name}_per_pos_total", position=p) for p in "01")
    assert first >= second


def test_nothing_runs_when_nothing_is_asked(server):
    until(lambda: total(server, "tandem_requests_running") == 0)
    assert total(server, "tandem_requests_waiting") == 0
