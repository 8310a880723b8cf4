"""`benchmarks.auto` compares `auto` with what is best, not with what was luckiest."""

import pytest
from benchmarks.auto import CellRates

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
