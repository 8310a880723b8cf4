"""Latencies are computed from the timestamps of a sequence."""

import pytest

from tandem.bls import statistics
from tandem.bls.statistics import Timeline

S = 10**9  # nanoseconds


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0

        def time_ns(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(statistics, "time", made)
    return made


def test_latencies_are_computed_from_deliveries(clock):
    times = Timeline(arrival=1 * S)
    clock.now = 2 * S
    times.mark_scheduled()
    for clock.now, tokens in ((4 * S, 3), (5 * S, 0), (7 * S, 1), (10 * S, 2), (11 * S, 0)):
        times.record_delivery(tokens)
    assert times.time_to_first_token == 3
    assert times.inter_token_latency == 2  # 6 s between first and last delivery, 3 tokens
    assert times.decoding_seconds == 9
    assert (times.num_tokens, times.num_first_tokens) == (6, 3)
    assert (times.first_token, times.last_token) == (4 * S, 10 * S)


def test_latencies_are_not_negative_if_the_clock_is_set_back(clock):
    times = Timeline(arrival=9 * S)
    clock.now = 8 * S
    times.record_delivery(1)
    assert times.time_to_first_token == 0
