"""Drafting ahead by the real loop, in virtual time: what it gains, and where it must not lose."""

from argparse import Namespace
from dataclasses import replace

import pytest
from benchmarks.loop_simulation import Bench
from scale import scaled

OPTIONS = Namespace(
    answers=1,
    answer_len=200,
    hop_ms=1.2,
    loop_ms=0.3,
    branch_slope=0.003,
    temperature=0.0,
    use_draft_logits=False,
)


def bench(profile="emulated-70b-1b", **options):
    return Bench(profile, Namespace(**vars(OPTIONS) | options))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_stream_is_faster_by_a_third(temperature):
    measured = bench(temperature=temperature)
    turns, _ = measured.measured(1, 10, draft_ahead=False)
    ahead, loops = measured.measured(1, 10, draft_ahead=None)
    assert ahead > 1.33 * turns
    assert loops.hits > 0.7 * loops.rounds


def test_one_stream_by_probabilities_is_faster_by_a_quarter():
    measured = bench(temperature=1.0, use_draft_logits=True)
    turns, _ = measured.measured(1, 10, draft_ahead=False)
    ahead, loops = measured.measured(1, 10, draft_ahead=None)
    assert ahead > 1.25 * turns
    assert loops.hits > 0.6 * loops.rounds


@pytest.mark.parametrize(("streams", "gain"), scaled((4, 1.2), (20, 1.0)))
def test_streams_side_by_side_lose_nothing(streams, gain):
    measured = bench(answers=6, answer_len=250)  # the second one tries both ways
    turns, _ = measured.measured(streams, 10, draft_ahead=False)
    ahead, _ = measured.measured(streams, 10, draft_ahead=None)
    assert ahead >= gain * turns


def test_on_one_device_nothing_is_drafted_ahead_by_itself():
    measured = bench(answer_len=50)
    measured._settings = replace(measured._settings, engines_share_device=True)
    turns, _ = measured.measured(1, 10, draft_ahead=False)
    auto, loops = measured.measured(1, 10, draft_ahead=None)
    assert (auto, loops.hits) == (turns, 0)
