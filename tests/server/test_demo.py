"""`tandem demo`, in small: it serves, compares, and leaves nothing behind."""

import os

import pytest
from live_triton import leftovers

from tandem.tools import cli as command
from tandem.tools.commands import demo
from tandem.tools.triton.launch import PREFIX


def regions():
    """Shared memory of this process's servers; the one that all tests share may be among them."""
    return set(leftovers(f"{PREFIX}{os.getpid()}-"))


@pytest.fixture
def small(monkeypatch, embedded_profile):
    """Two prompts, short answers, one repeat."""
    monkeypatch.setattr(demo, "EMBEDDED", embedded_profile)
    for name, number in (("NUM_PROMPTS", 2), ("MAX_TOKENS", 16), ("REPEATS", 1)):
        monkeypatch.setattr(demo, name, number)


def test_demo_finds_the_same_text_on_every_prompt(small, capsys):
    before = regions()
    assert command.main(["demo"]) == 0
    shown = capsys.readouterr().out
    *_, one, other, total, legend, engines, rest = shown.splitlines()
    assert [line.split()[-1] for line in (one, other, total)] == ["yes"] * 3
    assert legend == "Greedy, 16 tokens at most; times are medians of 1 answers."
    assert engines.startswith("A round of draft_model took ")
    assert rest.endswith("in Triton and the loop, which matters less the longer the engines take.")
    for prompt in demo.read_prompts(demo.PROMPTS):
        assert demo.last_lines(prompt.text, demo.PROMPT_LINES) in shown
    assert regions() <= before


def test_demo_stops_its_server_when_it_is_interrupted(small, monkeypatch):
    before = regions()

    def interrupt(*_):
        assert regions() - before
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.DemoRunner, "warm_up", interrupt)
    assert command.main(["demo"]) == 130
    assert regions() <= before
