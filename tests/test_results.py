"""docs/results.md, the README and the chart show the results from benchmarks/results."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEASURED = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location(
        "result_tables", ROOT / "docs" / "result_tables.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_page_matches_the_measurements(tables):
    page = tables.PAGE.read_text()
    assert tables.filled(page) == page
    assert {path.stem for path in MEASURED} == {found[2] for found in tables.TABLE.finditer(page)}


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_measurement_has_date_commit_machine_and_commands(path):
    result = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert re.fullmatch(r"[0-9a-f]{7,40}", result["commit"])
    assert result["machine"]
    assert result["software"]
    assert result["commands"]


def test_the_chart_matches_the_measurements(tables):
    drawn = tables.FIGURE.read_text()
    assert drawn == tables.figure()
    assert len(re.findall(r">\d\.\d\dx<", drawn)) == 2 + 2 * 3


def test_the_readme_shows_the_numbers_of_the_results(tables):
    section = (ROOT / "README.md").read_text().partition("## Performance")[2].partition("\n## ")[0]
    row = re.compile(r"^\| .*? \| (\d+) tokens/s \| (\d+) tokens/s \| .*?([\d.]+)x", re.MULTILINE)
    baseline, hybrid = (
        [row for row in tables.measured("demo-pair")["rows"] if drafter in row[1]]
        for drafter in ("none", "hybrid")
    )
    assert row.findall(section) == [
        (f"{plain[2]:.0f}", f"{drafted[2]:.0f}", f"{drafted[3]:.2f}")
        for plain, drafted in zip(baseline, hybrid, strict=True)
    ]
