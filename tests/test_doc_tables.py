"""The reference tables are up to date and short."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MAX_WORDS = 20  # per table cell


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("reference_tables", DOCS / "reference_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_generated_tables_are_up_to_date(tables, page):
    assert page.read_text() == tables.fill_tables(page.read_text()), "run: make docs-tables"


@pytest.mark.parametrize(
    "page", [*DOCS.glob("reference/*.md"), *DOCS.glob("deploy/*.md")], ids=lambda page: page.stem
)
def test_table_cells_are_short(page):
    text = re.sub(r"\]\(.*?\)|\(default: .*?\)", "", page.read_text())
    rows = re.findall(r"^\|.*", text, re.MULTILINE)
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell.split()) > MAX_WORDS] == []
