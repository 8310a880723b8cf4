"""The tables of the documentation are those of the code."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LONGEST_CELL = 20  # words


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("reference_tables", DOCS / "reference_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_tables_are_up_to_date(tables, page):
    assert page.read_text() == tables.filled(page.read_text()), "run: make docs-tables"
