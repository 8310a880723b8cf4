"""What the documents name is there."""

import builtins
import re
from pathlib import Path

import pytest

from tandem.bls import metric_names
from tandem.contract import entry
from tandem.engines import metric_names as engine_metric_names
from tandem.gateway.metrics import GatewayMetrics

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "demo" / "README.md",
]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
METRICS = [
    *metric_names.METRICS,
    *metric_names.WATCHER,
    *engine_metric_names.METRICS,
    *(metric.name for metric in vars(GatewayMetrics()).values()),
]
# What they say of the code in backquotes must be there: NAME stands for whatever is added.
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]
QUOTED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./*-]+\.(py|md|yaml|json|pbtxt)|[\w*-]+(/[\w.*-]+)+/?")
IDENTIFIER = re.compile(r"(\w+\.)*\w+(\(.*\))?")
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


def quoted(document):
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return sorted({name for name in QUOTED.findall(text) if "NAME" not in name})


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_files_that_a_guide_names_exist(document):
    files = [name for name in quoted(document) if FILE.fullmatch(name)]
    assert files
    for name in files:
        assert any(next(ROOT.glob(f"{near}{name}"), None) for near in ("", "*/", "*/*/")), name


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: path.name)
def test_names_that_a_guide_names_are_in_the_code(document):
    folders = [path.resolve() for path in (ROOT / "src" / "tandem").iterdir() if path.is_dir()]
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    words = set(re.findall(r"\w+", sources)) | set(dir(builtins))
    names = [name for name in quoted(document) if IDENTIFIER.fullmatch(name)]
    assert names
    for name in names:
        for word in re.findall(r"\w+", name.partition("(")[0]):
            assert word in words, f"{document.name}: {name}"
