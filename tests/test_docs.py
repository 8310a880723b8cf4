"""Names in the documentation exist, and all public names are documented."""

import builtins
import re
import typing

import pytest
from paths import ROOT
from pydantic import BaseModel

from tandem.bls import metrics as metric_names
from tandem.contract import entry
from tandem.contract.guide import KINDS
from tandem.engines import engine as engine_metric_names
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol.requests import DetokenizeRequest, TokenizeRequest
from tandem.gateway.tool_calls import FORMATS
from tandem.tools.commands.command_line import COMMANDS, make_parser
from tandem.tools.commands.gateway_options import KEY_VARIABLE
from tandem.tools.profiles.engines.llamacpp import LlamaCppTarget
from tandem.tools.profiles.engines.torch import TorchTarget
from tandem.tools.profiles.profile import Profile

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks" / "logbook").glob("*.md")),
    ROOT / "tandem" / "demo" / "README.md",
]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
PLACE = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
METRICS = [
    *metric_names.METRICS,
    *metric_names.WATCHER,
    *engine_metric_names.METRICS,
    *re.findall(r"^# TYPE (\S+)", GatewayMetrics().text().decode(), re.MULTILINE),
]
# Names in backquotes in these pages must exist, except the placeholder NAME.
FOR_DEVELOPERS = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "project" / "architecture.md"]
QUOTED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./*-]+\.(py|md|yaml|json|pbtxt)|[\w*-]+(/[\w.*-]+)+/?")
IDENTIFIER = re.compile(r"(\w+\.)*\w+(\(.*\))?")
METRIC = re.compile(r"(?<![\w:/-])(?:vllm:|tandem_|spec_decode_num_)[a-z_]+(?![\w*])")
OF_A_HISTOGRAM = re.compile(r"_(bucket|count|sum)$")
NAME_METRICS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ),
]
# Page texts by file name. A reference page replaces a concept page with the same name.
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
# Each kind of engine has its own page, which documents its keys.
ENGINE_PAGES = {
    "emulated": "emulated",
    "tensorrtllm": "tensorrt-llm",
    "llmapi": "llmapi",
    "remote": "draft-on-another-machine",
    "vllm": "vllm",
}
VARIABLE = re.compile(r"""environ(?:\.get\(|\.setdefault\(|\[)['"](\w+)""")
OF_EVERY_PROCESS = {"PATH", "LD_LIBRARY_PATH"}


def section(page, title):
    """Return a section of a reference page, including its subsections."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGES[page], re.DOTALL | re.MULTILINE
    )
    assert found, title
    return found[1]


def named(text, name=r"[\w.]+"):
    """Return the names in the first columns of all tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {found for cell in cells for found in re.findall(rf"`({name})`", cell)}


@pytest.mark.parametrize(
    ("page", "tensors"), [("inputs", entry.INPUTS), ("outputs", entry.OUTPUTS)], ids=str
)
def test_every_tensor_of_bls_is_documented(page, tensors):
    assert [name for name in tensors if f"`{name}`" not in PAGES[page]] == []


def options(name):
    actions = [action for action in make_parser(name)._actions if action.dest != "help"]
    return {option for action in actions for option in action.option_strings}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "doctor"])
def test_documented_options_equal_the_real_options(name):
    own = section("command-line", f"`tandem {name}`")
    # A section links to the commands whose options it shares.
    others = re.findall(r"\(#tandem-(\w+)\)", own)
    described = own + "".join(section("command-line", f"`tandem {other}`") for other in others)
    assert not [option for option in options(name) if f"`{option}`" not in described]
    assert named(own, r"--[\w-]+") <= options(name)


def keys_of_profile(part=Profile, path=(), page="profile"):
    """Yield the path of each profile key and the page that documents the key."""
    if "kind" in part.model_fields:
        (kind, *_) = typing.get_args(part.model_fields["kind"].annotation)
        page = ENGINE_PAGES.get(kind, page)
    for key, field in part.model_fields.items():
        yield (*path, key), page
        for deeper in parts_of(field.annotation):
            yield from keys_of_profile(deeper, (*path, key), page)


def parts_of(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from parts_of(argument)


def test_every_key_of_a_profile_is_documented():
    shared = PAGES["profile"] + PAGES["limits"]
    undocumented = {
        (page, ".".join(path))
        for path, page in keys_of_profile()
        if not re.search(rf"`[^`\n]*\b{path[-1]}\b[^`\n]*`", PAGES[page] + shared)
    }
    assert undocumented == set()


def test_every_key_of_a_torch_or_llamacpp_engine_is_documented():
    engines = section("profile", "Engines")
    known = {*TorchTarget.model_fields, *LlamaCppTarget.model_fields}
    assert named(engines) == known - {"kind"}


def test_every_environment_variable_is_documented():
    folders = ("bls", "engines", "gateway", "preprocessing", "postprocessing", "tools")
    sources = [path.read_text() for name in folders for path in (ROOT / name).rglob("*.py")]
    read = {name for source in sources for name in VARIABLE.findall(source)}
    assert "XDG_CACHE_HOME" in read
    assert (
        not (read | {KEY_VARIABLE})
        - OF_EVERY_PROCESS
        - named(section("command-line", "Environment"))
    )


@pytest.mark.parametrize("body", [TokenizeRequest, DetokenizeRequest], ids=lambda b: b.__name__)
def test_every_field_of_the_gateways_other_endpoints_is_documented(body):
    assert not [field for field in body.model_fields if f"`{field}`" not in PAGES["openai-api"]]


def test_every_metric_is_documented():
    assert [metric for metric in METRICS if f"`{metric}`" not in PAGES["metrics"]] == []


def test_documented_guide_kinds_equal_the_real_kinds():
    rows = section("structured-output", "Guides").partition("```")[0]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == [*KINDS]


def test_every_tool_call_format_is_documented():
    for known in FORMATS:
        assert f"\n| `{known.name}` | " in PAGES["openai-api"]


def test_metrics_named_in_docs_and_deployment_files_exist():
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
def test_links_point_to_existing_files_and_headings(document):
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
    for target, place in PLACE.findall(document.read_text().replace("\n", " ")):
        page = document.parent / target if target else document
        slugs = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in HEADING.findall(page.read_text())
        }
        assert place in slugs, f"{document.name} links to {target}#{place}"


def quoted(document):
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return sorted({name for name in QUOTED.findall(text) if "NAME" not in name})


@pytest.mark.parametrize("document", FOR_DEVELOPERS, ids=lambda path: path.name)
def test_files_and_names_in_the_docs_exist(document):
    files = [name for name in quoted(document) if FILE.fullmatch(name)]
    assert files
    for name in files:
        assert any(
            next(ROOT.glob(f"{near}{name}"), None) for near in ("", "*/", "*/*/", "*/*/*/")
        ), name
    folders = [path.resolve() for path in (ROOT / "tandem").iterdir() if path.is_dir()]
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    words = set(re.findall(r"\w+", sources)) | set(dir(builtins))
    names = [name for name in quoted(document) if IDENTIFIER.fullmatch(name)]
    assert names
    for name in names:
        for word in re.findall(r"\w+", name.partition("(")[0]):
            assert word in words, f"{document.name}: {name}"
