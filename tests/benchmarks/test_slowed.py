"""Benchmarks can make emulated engines slower, and leave real ones as they are."""

from pathlib import Path

import pytest
from benchmarks.slowed import slowed

from tandem.tools.profiles.profile import read_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"


def test_each_step_of_an_emulated_engine_takes_that_many_times_as_long():
    profile, _ = read_profile(PROFILES / "emulated-70b-1b.yaml")
    slower = slowed(profile, times=4)
    for name, engine in profile.engines:
        other = getattr(slower.engines, name)
        assert other.step_ms == pytest.approx(4 * engine.step_ms)
        unchanged = other.model_copy(update={"step_ms": engine.step_ms})
        assert unchanged == engine


def test_the_price_of_other_calls_can_be_set():
    profile, _ = read_profile(PROFILES / "emulated-70b-1b.yaml")
    slopes = [engine.batch_slope for _, engine in slowed(profile, batch_slope=0.03).engines]
    assert slopes == [0.03, 0.03]


def test_a_real_engine_is_left_as_it_is():
    profile, _ = read_profile(PROFILES / "embedded.yaml")
    assert slowed(profile, times=4, batch_slope=0.03) == profile
