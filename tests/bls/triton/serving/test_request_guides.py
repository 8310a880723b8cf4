"""The loop compiles guides or rejects them with a reason."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tokenizer_kinds
from scripted import SETTINGS, ids, with_engines
from small_guides import END, tokenizer, vocab_size

from tandem.bls.errors import Cancelled, GuideRejected, Overloaded
from tandem.bls.request import Request
from tandem.bls.triton.stream import RequestGuides
from tandem.contract.guide import Guide
from tandem.guides.errors import GuideUndecided, check_library

SMALL = replace(
    with_engines(SETTINGS, target={"vocab_size": vocab_size()}),
    end_ids=(END,),
    tokenizer_dir="tokenizer",
)
UNSUPPORTED = "^input 'guided_decoding_guide_type' isn't supported by this deployment: "


def no_check():
    """Do nothing, because the request is still active."""


def request_for(guide):
    return Request(prompt_ids=ids(5), max_tokens=9, end_ids=(END,), guide=guide)


@pytest.fixture
def guides(tmp_path):
    """Return a function that makes `RequestGuides` and the list of its counted rejections."""
    counted, all_made = [], []

    def made(read=tokenizer, settings=SMALL):
        tokenizer_kinds.write(read(), tmp_path / "tokenizer")
        all_made.append(RequestGuides(settings, tmp_path, counted.append))
        return all_made[-1], counted

    yield made
    for each in all_made:
        each.close()


def test_a_compiled_guide_can_be_reused(guides):
    it, counted = guides()
    requests = [request_for(Guide("choice", '["fox"]')), request_for(None)]
    it.check(requests)
    for _ in range(2):
        guided, free = (it.matcher(request, no_check) for request in requests)
        assert guided.peek_forced(9)
        assert free is None
    assert not counted


def test_guides_for_an_ended_request_are_not_compiled(guides):
    def ended():
        raise Cancelled

    it, _ = guides()
    with pytest.raises(Cancelled):
        it.matcher(request_for(Guide("choice", '["fox"]')), ended)


def test_rejected_guides_are_counted_by_unsupported_keyword(guides):
    it, counted = guides()
    with pytest.raises(GuideRejected, match=r"^input 'guided_decoding_guide': Unimplemented keys"):
        it.matcher(request_for(Guide("json_schema", '{"not": {}, "contains": {}}')), no_check)
    assert counted == ["contains", "not"]


def test_guides_are_rejected_if_llguidance_is_not_installed(guides, monkeypatch):
    monkeypatch.delitem(sys.modules, "tandem.guides.compiler")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    it, _ = guides()
    it.check([request_for(None)])
    with pytest.raises(
        GuideRejected, match=UNSUPPORTED + ".*isn't installed; install llguidance>=1.9,<2 in"
    ):
        it.check([request_for(Guide("json"))])


@pytest.mark.parametrize("version", ["0.7.30", "1.8.2", "2.0.0", "master", None])
def test_guides_are_rejected_with_an_unsupported_llguidance_version(guides, monkeypatch, version):
    """Each version has different bugs, and NVIDIA's image has an older version."""
    library = SimpleNamespace() if version is None else SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "llguidance", library)
    it, _ = guides()
    found = version or "of an unknown version"
    said = f"llguidance {found} isn't supported; install llguidance>=1.9,<2"
    with pytest.raises(GuideRejected, match=UNSUPPORTED + said):
        it.check([request_for(Guide("json"))])


@pytest.mark.parametrize("version", ["1.9.0", "1.10.3", "1.99.0rc1"])
def test_supported_llguidance_versions_are_accepted(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "llguidance", SimpleNamespace(__version__=version))
    check_library()


def test_guides_are_rejected_without_a_readable_tokenizer(guides):
    it, _ = guides(tokenizer_kinds.words)
    with pytest.raises(GuideRejected, match=UNSUPPORTED + ".*can't read its tokenizer$"):
        it.check([request_for(Guide("json"))])


def test_a_profile_without_guides_loads_no_tokenizer(tmp_path):
    it = RequestGuides(replace(SMALL, max_guide_bytes=0), tmp_path / "nowhere", print)
    it.check([request_for(None)])
    assert it.matcher(request_for(None), no_check) is None


def test_guides_are_rejected_as_overloaded_if_no_process_can_start(guides, monkeypatch):
    def no_process(*_, **__):
        raise BlockingIOError("no process")

    it, counted = guides()
    it.close()
    monkeypatch.setattr("subprocess.Popen", no_process)
    with pytest.raises(
        Overloaded, match="can't start a process to compile the guide; try again later"
    ):
        it.matcher(request_for(Guide("regex", "a")), no_check)
    assert not counted


def test_a_guide_that_was_compiled_too_slowly_can_be_retried(guides, monkeypatch):
    def slow(*_):
        raise GuideUndecided("it is not compiled after 30 s")

    it, counted = guides()
    request = request_for(Guide("regex", "a"))
    with monkeypatch.context() as patched:
        patched.setattr("tandem.guides.worker.Worker.try_out", slow)
        with pytest.raises(Overloaded, match="not compiled after 30 s; try again later"):
            it.matcher(request, no_check)
    matcher = it.matcher(request, no_check)
    assert matcher.peek_forced(9)
    assert not counted


def test_guides_are_rejected_without_a_worker_program(guides, monkeypatch):
    monkeypatch.setattr("tandem.guides.worker.python", lambda: "/nowhere/python")
    it, _ = guides()
    with pytest.raises(
        GuideRejected, match=UNSUPPORTED + ".*executable /nowhere/python is missing; install"
    ):
        it.check([request_for(Guide("json"))])
