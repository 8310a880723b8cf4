"""What the documents name is there."""

import re
from pathlib import Path

import pytest

from tandem.bls import metric_names
from tandem.contract import entry
from tandem.engines import metric_names as engine_metric_names
from tandem.gateway.metrics import GatewayMetrics

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
METRICS = [
    *metric_names.METRICS,
    *metric_names.WATCHER,
    *engine_metric_names.METRICS,
    *(metric.name for metric in vars(GatewayMetrics()).values()),
]
METRIC = re.compile(r"(?<![\w:/-])(?:vllm:|tandem_|spec_decode_num_)[a-z_]+(?![\w*])")
OF_A_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")
NAME_METRICS = [
    *sorted((ROOT / "docs").glob("*.md")),
    # `dashboard.py` composes names; what it writes is tandem.json.
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".py"
    ),
    ROOT / "deploy" / "helm" / "tandem" / "files" / "health.py",
]


@pytest.mark.parametrize("tensor", [*entry.INPUTS, *entry.OUTPUTS], ids=str)
def test_reference_knows_every_tensor_of_the_entries(tensor):
    assert f"`{tensor}`" in (ROOT / "docs" / "reference.md").read_text()


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_reference_knows_every_metric(metric):
    assert f"`{metric}`" in (ROOT / "docs" / "reference.md").read_text()


def test_no_metric_is_declared_twice():
    assert sorted(METRICS) == sorted(set(METRICS))


def test_documents_and_deployments_name_metrics_that_exist():
    named = {
        (path.name, name)
        for path in NAME_METRICS
        for name in METRIC.findall(path.read_text(errors="replace"))
    }
    assert ("tandem.json", "tandem_rounds_total") in named
    unknown = {
        (file, name)
        for file, name in named
        if name not in METRICS and OF_A_HISTOGRAM.sub("", name) not in METRICS
    }
    assert unknown == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
