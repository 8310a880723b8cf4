"""`benchmarks.auto` compares `auto` with what is best, not with what was luckiest."""

import pytest
from benchmarks import auto
from benchmarks.auto import CellRates, TimeLeft

from tandem.bls.settings import AUTO
from tandem.tools.benchmark.variant import CONTROL, Variant

FOUR, EIGHT, ADAPTIVE = (Variant("draft_model", n) for n in (4, 8, AUTO))


def test_a_turn_is_held_against_what_was_best_in_the_others():
    cell = CellRates(
        "text",
        *(1, 0.0),
        {
            CONTROL: [1.0] * 5,
            FOUR: [10.0, 10.0, 10.0, 10.0, 20.0],  # lucky once
            EIGHT: [11.0] * 5,
            ADAPTIVE: [11.0] * 5,
        },
    )
    assert cell.over_best(ADAPTIVE) == (1.0, 1.0, 1.0)
    assert cell.over(ADAPTIVE, FOUR).low < 1


def test_one_turn_is_held_against_its_own_best():
    cell = CellRates("text", 1, 0.0, {CONTROL: [1.0], FOUR: [10.0], EIGHT: [8.0], ADAPTIVE: [9.0]})
    assert cell.best == FOUR
    assert cell.over_best(ADAPTIVE).median == pytest.approx(0.9)


def test_each_cell_has_an_equal_part_of_the_time_that_is_left(monkeypatch):
    now = 100.0
    monkeypatch.setattr(auto.time, "monotonic", lambda: now)
    time_left = TimeLeft(2.0, 4)
    assert time_left.of_next_cell() == 130.0
    now = 160.0  # it took twice as long
    assert time_left.of_next_cell() == 180.0
    now = 170.0  # and this one half
    assert time_left.of_next_cell() == 195.0
    assert TimeLeft(None, 4).of_next_cell() is None
