"""What the documents name is there."""

import re
from pathlib import Path

import pytest

from tandem.contract import entry

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
METRIC = re.compile(r'"((?:spec_decode|tandem)_\w+)"')


@pytest.mark.parametrize("tensor", [*entry.INPUTS, *entry.OUTPUTS], ids=str)
def test_reference_knows_every_tensor_of_the_entries(tensor):
    assert f"`{tensor}`" in (ROOT / "docs" / "reference.md").read_text()


@pytest.mark.parametrize("module", ["bls/triton/metric_names.py", "engines/triton.py"])
def test_reference_knows_every_metric(module):
    text = (ROOT / "docs" / "reference.md").read_text()
    names = METRIC.findall((ROOT / module).read_text())
    assert names
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
