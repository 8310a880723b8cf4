"""The README and the chart show the numbers of docs/results.md, and pictures show the product."""

from __future__ import annotations

import html
import importlib.util
import re

import pytest
from paths import ROOT

from tandem.tools.client.terminal import COLUMNS


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("speedups", ROOT / "docs" / "speedups.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_measurement_has_date_commit_machine_and_commands(results):
    origin = re.compile(
        r"^\*\d{4}-\d\d-\d\d, commit [0-9a-f]{7,40}, .+; \[commands\]\(.+\)\.\*$", re.MULTILINE
    )
    tables = re.findall(r"^\| --- \|", results.PAGE.read_text(), re.MULTILINE)
    assert len(origin.findall(results.PAGE.read_text())) == len(tables)


def test_the_chart_matches_the_measurements(results):
    drawn = results.FIGURE.read_text()
    assert drawn == results.figure()
    assert len(re.findall(r">\d\.\d\dx<", drawn)) == 2 + 2 * 3


def test_the_readme_shows_the_numbers_of_the_results(results):
    section = (ROOT / "README.md").read_text().partition("## Performance")[2].partition("\n## ")[0]
    shown = re.compile(r"^\| .*? \| (\d+) tokens/s \| (\d+) tokens/s \| .*?([\d.]+x)", re.MULTILINE)
    baseline, hybrid = (
        [row for row in results.rows("demo-pair") if drafter in row[1]]
        for drafter in ("none", "hybrid")
    )
    assert shown.findall(section) == [
        (plain[2], drafted[2], drafted[3]) for plain, drafted in zip(baseline, hybrid, strict=True)
    ]


def test_the_picture_of_the_page_shows_its_words():
    page = ROOT / "tandem" / "gateway" / "page"
    scripts = "".join((page / f"{name}.js").read_text() for name in ("page", "panel"))
    words = re.sub(r"<[^>]*>", "", (page / "index.html").read_text()) + scripts
    known = " ".join(words.split())
    shown = (ROOT / "docs" / "page.txt").read_text().splitlines()
    assert [line for line in shown if line not in known] == [], "run `make pictures`"


def test_the_recording_shows_the_commands_and_columns_of_the_product():
    drawn = (ROOT / "docs" / "demo.svg").read_text().replace("&#160;", " ")
    recording = (ROOT / "docs" / "recording.py").read_text()
    command = re.search(r"^GENERATE = '(.*)'$", recording, re.MULTILINE)[1]
    shown = re.sub(r"<[^>]*>", "", drawn)
    for words in (command, "tandem up", *filter(str.isalpha, COLUMNS)):
        assert words in html.unescape(shown), "run `make pictures`"
