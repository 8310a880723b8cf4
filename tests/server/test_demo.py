"""A short `tandem demo` serves, compares, and leaves no files or processes."""

import os

import pytest
import yaml
from live_triton import leftovers

from tandem.tools import cli as command
from tandem.tools.commands import demo
from tandem.tools.triton.launch import PREFIX

from .conftest import EMULATED_ZERO


def regions():
    """Shared memory of this process's servers; the one that all tests share may be among them."""
    return set(leftovers(f"{PREFIX}{os.getpid()}-"))


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A prompt of each kind, short answers, one repetition, and engines that start quickly."""
    shipped = yaml.safe_load(demo.EMBEDDED.read_text())
    profile = yaml.safe_load(EMULATED_ZERO.read_text()) | {"decoding": shipped["decoding"]}
    for section in profile["engines"].values():
        section["tokenizer"] = str(EMULATED_ZERO.parent / section["tokenizer"])
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.setattr(demo, "EMBEDDED", tmp_path / "profile.yaml")
    for name, number in (("PROMPTS_OF_A_KIND", 1), ("MAX_TOKENS", 16), ("REPEATS", 1)):
        monkeypatch.setattr(demo, name, number)


def test_the_demo_reports_equal_output_for_every_prompt(small, capsys):
    before = regions()
    assert command.main(["demo"]) == 0
    shown = capsys.readouterr().out
    table, (legend, engines, rest) = shown.splitlines()[:-3], shown.splitlines()[-3:]
    said = [line.split("  ")[0] for line in table if line.endswith("yes")]
    assert said == ["show-0", "all completions", "edit-0", "all edits", "all"]
    assert legend == "Greedy, up to 16 tokens; times are medians of 1 requests."
    assert engines.startswith("A round with hybrid took ")
    assert rest.endswith("in Triton and the loop, which matters less with larger engines.")
    for prompt in demo.read_prompts(demo.PROMPTS):
        assert demo.last_lines(prompt.text, demo.PROMPT_LINES) in shown
    assert regions() <= before


@pytest.mark.heavy
def test_an_interrupted_demo_stops_its_server(small, monkeypatch):
    before = regions()

    def interrupt(*_):
        assert regions() - before
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.DemoRunner, "warm_up", interrupt)
    assert command.main(["demo"]) == 130
    assert regions() <= before
