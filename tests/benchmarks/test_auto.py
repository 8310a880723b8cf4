"""`benchmarks.auto` compares `auto` with the best fixed draft length."""

import pytest
from benchmarks.auto import PROFILES, CellRates, slowed

from tandem.bls.settings import AUTO
from tandem.tools.benchmark.variant import BASELINE, Variant
from tandem.tools.profiles.profile import read_profile

FOUR, EIGHT, ADAPTIVE = (Variant("draft_model", n) for n in (4, 8, AUTO))


def test_each_run_is_compared_with_the_best_variant_of_other_runs():
    cell = CellRates(
        "text",
        *(1, 0.0),
        {
            BASELINE: [1.0] * 5,
            FOUR: [10.0, 10.0, 10.0, 10.0, 20.0],  # fast in one run by chance
            EIGHT: [11.0] * 5,
            ADAPTIVE: [11.0] * 5,
        },
    )
    assert cell.over_best(ADAPTIVE) == (1.0, 1.0, 1.0)
    assert cell.over(ADAPTIVE, FOUR).p10 < 1


def test_a_single_run_is_compared_with_its_own_best_variant():
    cell = CellRates("text", 1, 0.0, {BASELINE: [1.0], FOUR: [10.0], EIGHT: [8.0], ADAPTIVE: [9.0]})
    assert cell.best == FOUR
    assert cell.over_best(ADAPTIVE).median == pytest.approx(0.9)


def test_slowing_down_emulated_engines_changes_only_their_step_time():
    profile = read_profile(PROFILES / "emulated-70b-1b.yaml")
    slower = slowed(profile, times=4)
    for name, engine in profile.engines:
        other = getattr(slower.engines, name)
        assert other.step_ms == pytest.approx(4 * engine.step_ms)
        unchanged = other.model_copy(update={"step_ms": engine.step_ms})
        assert unchanged == engine


def test_the_batch_slope_of_emulated_engines_can_be_set():
    profile = read_profile(PROFILES / "emulated-70b-1b.yaml")
    slopes = [engine.batch_slope for _, engine in slowed(profile, batch_slope=0.03).engines]
    assert slopes == [0.03, 0.03]


def test_timing_options_leave_real_engines_unchanged():
    profile = read_profile(PROFILES / "embedded.yaml")
    assert slowed(profile, times=4, batch_slope=0.03) == profile
