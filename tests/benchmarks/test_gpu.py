"""Figures of the GPU benchmark: written as they come, and of texts that were checked."""

import json

import pytest
import torch
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.budget import TimeBudget
from benchmarks.gpu.engine_alone import checked
from benchmarks.gpu.figures import FigureLog
from benchmarks.inflated.texts import Expected, expected_texts


def test_every_figure_is_in_the_file_at_once(tmp_path, capsys):
    file = tmp_path / "figures.jsonl"
    figures = FigureLog(file)
    figures.head(torch.device("cpu"), target="small")
    figures.add("a step", ms=1.23456, texts=3)
    machine, step = map(json.loads, file.read_text().splitlines())
    assert (machine["gpu"], machine["target"]) == ("no GPU", "small")
    assert step == {"name": "a step", "ms": 1.23456, "texts": 3}
    assert "a step: ms 1.235, texts 3" in capsys.readouterr().out


def test_a_text_that_differs_is_told_with_how_near_the_two_tokens_were():
    [text] = expected_texts(1, 6)
    right = list(text.text)
    assert checked([text], [right]) == {"texts": 1, "differ": 0, "widest_gap": 0.0}
    wrong = [*right[:3], (right[3] + 1) % 3000, *right[4:]]
    found = checked([text, text], [right, wrong])
    assert (found["texts"], found["differ"]) == (2, 1)
    assert 0 < found["widest_gap"] < 1000
    padding = checked([Expected(text.prompt, text.text)], [[4000, *right[1:]]])
    assert padding["widest_gap"] == float("inf")


SMALLEST = "--like small-target --draft small-draft --device cpu --threads 1 --prompts 1 --tokens 6"


def run(tmp_path, *options: str) -> tuple[int, dict[str, dict]]:
    """Run the command; return its exit status and the figures by name."""
    file = tmp_path / "figures.jsonl"
    status = main([*SMALLEST.split(), "--turns", "1", "--output", str(file), *options])
    lines = map(json.loads, file.read_text().splitlines())
    return status, {line.pop("name"): line for line in lines}


@pytest.mark.heavy
def test_the_smallest_run_of_the_engines_alone_measures_all_and_every_text_is_right(tmp_path):
    status, figures = run(tmp_path, "--engine-only")
    steps = ["step", "drafts 4", "drafts 8", "verifies 5", "step of 16 texts"]
    assert list(figures) == [
        *("machine", "pair", "copy within the device"),
        *(f"{role} {step}" for role in ("target", "draft") for step in steps),
        *("target alone", "loop, draft_len 4", "loop, draft_len 8"),
        *("transformers plain", "transformers assisted"),
    ]
    texts = [found for found in figures.values() if "texts" in found]
    assert [(found["texts"], found["differ"]) for found in texts] == [(1, 0)] * 5
    assert figures["machine"]["paged"] is True
    assert status == 0


def test_a_run_without_time_says_what_it_leaves_out(tmp_path):
    status, figures = run(tmp_path, "--minutes", "0")
    assert list(figures) == ["machine", "pair", "left out: small-target"]
    assert status == 0


@pytest.mark.heavy
def test_the_smallest_run_behind_triton_compares_every_text_with_the_controls(tmp_path):
    options = ["--at-once", "1", "3", "--instances", "1", "2", "--no-transformers"]
    status, figures = run(tmp_path, *options)
    assert status == 0
    served = {name: found for name, found in figures.items() if name.startswith("Triton ")}
    crowds = [name for name in served if name.endswith("loops")]
    assert len(crowds) == 3 * 2 * 2
    compared = [found for found in served.values() if "texts" in found]
    assert len(compared) == len(crowds) + 6
    assert {found["differ_from_control"] for found in compared} == {0}
    assert served["Triton draft logits"]["vocab_size"] == 4096


class Clock:
    """Goes on only when something takes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def figures(tmp_path):
    return FigureLog(tmp_path / "figures.jsonl")


def names(tmp_path) -> list[str]:
    return [json.loads(x)["name"] for x in (tmp_path / "figures.jsonl").read_text().splitlines()]


def test_what_would_end_too_late_is_left_out_and_what_is_shorter_is_not(tmp_path, figures):
    clock = Clock()
    budget = TimeBudget(figures, 10, clock)
    done = []

    def measure(name, seconds):
        clock.take(seconds)
        done.append(name)

    budget.run("long", "one", lambda: measure("one", 4))
    budget.run("long", "two", lambda: measure("two", 3))
    budget.run("long", "three", lambda: measure("three", 1))  # three seconds are left: four needed
    budget.run("short", "four", lambda: measure("four", 3))
    budget.run("short", "five", lambda: measure("five", 0))
    assert done == ["one", "two", "four"]
    assert names(tmp_path) == ["left out: three", "left out: five"]


def test_a_part_of_the_time_ends_before_it(figures):
    clock = Clock()
    budget = TimeBudget(figures, 10, clock)
    clock.take(2)
    part = budget.part(0.25)
    clock.take(2)
    assert (part.left, budget.left) == (0, 6)


def test_what_fails_is_told_and_the_others_are_measured(tmp_path, figures, caplog):
    budget = TimeBudget(figures, 10)

    def fail():
        raise ValueError("no such kernel\nand more")

    budget.run("a", "graphs", fail)
    budget.run("a", "steps", lambda: figures.add("steps", ms=1.0))
    assert names(tmp_path) == ["failed: graphs", "steps"]
    assert figures.num_failed == 1
    assert "no such kernel" in caplog.text
