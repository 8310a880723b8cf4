"""README's figure shows what docs/results.md says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "docs" / "speedups.py"


@pytest.fixture(scope="module")
def drawing():
    spec = importlib.util.spec_from_file_location("speedups", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figure_is_drawn_from_the_results_as_they_stand(drawing):
    assert drawing.FIGURE.read_text() == drawing.figure(drawing.RESULTS.read_text())


def test_every_pair_of_the_tables_has_its_bars(drawing):
    drawn = re.findall(r">([^<]+)</text>", drawing.FIGURE.read_text())
    assert [text for text in drawn if text.startswith(("demo", "emulated"))] == [
        "demo on two cores, completions",
        "demo on two cores, edits",
        "emulated 70B and 1B",
        "emulated 70B and 3B",
        "emulated 405B and 3B",
    ]
    assert len([text for text in drawn if re.fullmatch(r"\d\.\d\dx", text)]) == 2 + 2 * 3


def test_a_section_that_is_missing_is_named(drawing):
    with pytest.raises(ValueError, match=r"results\.md has no section '## The demo'"):
        drawing.figure("# Results\n")
