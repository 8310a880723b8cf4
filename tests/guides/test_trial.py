"""What would end the process, or keep it busy for ever, is refused and harms nobody."""

import contextlib
import gc
import json
import os
import time

import pytest
import small_guides
from hostile_guides import CRASHING, ENDLESS, large
from small_guides import END, matcher

from tandem.guides import compiler, trial
from tandem.guides.errors import GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.grammar import grammar_of
from tandem.guides.guide import Guide
from tandem.guides.trial import try_out


def test_work_that_ends_returns_and_changes_nothing():
    done = []
    assert try_out(lambda: done.append(1) or "größer" * 100_000, 1) == "größer" * 100_000
    assert not done


def test_an_exception_is_an_end():
    assert try_out(lambda: json.loads("{"), 1) is None


def test_a_copy_frees_nothing_that_lies_in_cycles(tmp_path):
    """In the loop's process it may be in memory that is shared with Triton."""
    freed = tmp_path / "freed"

    class Shared:
        def __init__(self):
            self.myself = self

        def __del__(self):
            with freed.open("a") as told:
                told.write(f"{os.getpid()}\n")

    def collect():
        return str(len([[] for _ in range(100_000)]))

    gc.collect()
    Shared()
    assert try_out(collect, 1) == "100000"
    assert not freed.exists()
    assert gc.isenabled()
    gc.collect()
    assert freed.read_text() == f"{os.getpid()}\n"


def test_where_no_copy_can_be_made_cycles_are_collected_all_the_same(monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: os.open("nowhere", os.O_RDONLY))
    with pytest.raises(OSError, match="nowhere"):
        try_out(str, 1)
    assert gc.isenabled()


def test_a_refusal_is_raised():
    def refuse():
        raise GuideError("half of a pair: \ud800")

    with pytest.raises(GuideError) as refused:
        try_out(refuse, 1)
    assert str(refused.value) == "half of a pair: \ud800"


@pytest.mark.parametrize(
    ("signal", "kind", "why"),
    [
        (6, GuideError, "it is too deep or too large to compile"),
        (9, GuideUndecided, "no memory or thread was left"),  # a system kills whom it likes
        (11, GuideError, "it is too deep or too large to compile"),
    ],
)
def test_work_that_ends_the_process_is_refused(signal, kind, why):
    with pytest.raises(GuideError, match=why) as refused:
        try_out(lambda: os.kill(os.getpid(), signal), 1)
    assert refused.type is kind


def test_work_that_takes_all_memory_is_refused():
    with pytest.raises(GuideError, match="too deep or too large"):
        try_out(lambda: str(bytes(4 * 2**30)), 1)


def test_work_without_end_is_refused():
    def turn():
        while True:
            pass

    with pytest.raises(GuideTakesLong, match=r"more than 0\.1 s to compile"):
        try_out(turn, 0.1)


def test_work_that_waits_for_ever_is_refused(monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 0.1)
    with pytest.raises(GuideUndecided, match="not compiled after 0 s"):
        try_out(lambda: time.sleep(1000), 1)


@pytest.mark.parametrize("name", CRASHING)
def test_guides_that_would_crash_the_process_are_refused(name):
    with pytest.raises(GuideError, match="too deep or too large to compile"):
        matcher(*CRASHING[name])


@pytest.mark.parametrize("name", ENDLESS)
def test_guides_that_compile_for_ever_are_refused(name, monkeypatch):
    monkeypatch.setattr(compiler, "ATTEMPT_SECONDS", (0.01, 0.1, 1))
    with pytest.raises(GuideError, match="more than 1 s to compile") as refused:
        matcher(*ENDLESS[name])
    assert refused.type is GuideError  # for good


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"pattern": "looked at elsewhere"}', ""),
        ('{"multipleOf": -1}', "multipleOf must be greater than 0"),
        ('{"not": {}}', "Unimplemented keys"),
    ],
)
def test_nothing_of_a_guide_that_is_tried_is_looked_at_in_this_process(text, why, monkeypatch):
    here = os.getpid()

    def looked_at(guide):
        return pytest.fail("looked at here") if os.getpid() == here else grammar_of(guide)

    monkeypatch.setattr(compiler, "grammar_of", looked_at)
    with pytest.raises(GuideError, match=why) if why else contextlib.nullcontext():
        matcher("json_schema", text)


def test_a_guide_that_is_looked_at_for_ever_is_refused(monkeypatch):
    def look(_):
        while True:
            pass

    monkeypatch.setattr(compiler, "grammar_of", look)
    monkeypatch.setattr(compiler, "ATTEMPT_SECONDS", (0.01, 0.02, 0.1))
    with pytest.raises(GuideError, match=r"more than 0\.1 s to compile"):
        matcher("regex", "looked at for ever")


def test_a_guide_that_takes_long_may_be_asked_for_again(monkeypatch):
    monkeypatch.setattr(compiler, "ATTEMPT_SECONDS", (0.01, 0.02, 4))
    kind, text = large(77)
    for attempt in range(2):
        with pytest.raises(GuideTakesLong, match=rf"more than 0\.0{attempt + 1} s"):
            small_guides.compiler().matcher(Guide(kind, text), [END], attempt=attempt)
    assert small_guides.compiler().matcher(Guide(kind, text), [END]).forced(1)


def test_an_attempt_that_was_not_enough_is_not_made_again(monkeypatch):
    monkeypatch.setattr(compiler, "ATTEMPT_SECONDS", (0.001, 0.01, 4))
    kind, text = large(78)
    for attempt in (1, 1, 0):
        with pytest.raises(GuideTakesLong):
            small_guides.compiler().matcher(Guide(kind, text), [END], attempt=attempt)
        monkeypatch.setattr(compiler, "try_out", pytest.fail)


def test_an_answer_goes_on_by_a_guide_that_has_to_be_compiled_anew(monkeypatch):
    monkeypatch.setattr(compiler, "ATTEMPT_SECONDS", (0.01, 4, 4))
    compiled, guide = small_guides.compiler(), Guide(*large(79))
    with pytest.raises(GuideTakesLong):
        compiled.matcher(guide, [END], attempt=0)
    compiled.matcher(guide, [END], attempt=1)
    known = compiled.matcher(guide, [END], attempt=0)
    assert known._fresh() is not known._automaton
