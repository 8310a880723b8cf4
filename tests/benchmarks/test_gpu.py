"""The GPU benchmark writes results immediately, compares outputs, and respects its time budget."""

import json

import pytest
import torch
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.figures import FigureLog, TimeBudget
from benchmarks.inflated.texts import count_differences, demo_settings, expected_texts


def test_each_figure_is_written_to_the_file_immediately(tmp_path, capsys):
    file = tmp_path / "figures.jsonl"
    figures = FigureLog(file)
    figures.head(torch.device("cpu"), target="small")
    figures.add("a step", ms=1.23456, texts=3)
    machine, step = map(json.loads, file.read_text().splitlines())
    assert (machine["gpu"], machine["target"]) == ("no GPU", "small")
    assert step == {"name": "a step", "ms": 1.23456, "texts": 3}
    assert "a step: ms 1.235, texts 3" in capsys.readouterr().out


def test_output_may_differ_from_the_baseline_only_by_rounding():
    [text] = expected_texts(1, 6)
    right = list(text.text)
    settings = demo_settings("target", device="cpu", dtype="float32")
    fine = {"texts": 1, "differ": 0, "wrong": 0, "widest_gap": 0.0}
    assert count_differences([text], [right], settings) == fine
    other = [*right[:3], (right[3] + 1) % 3000, *right[4:]]
    found = count_differences([text, text], [right, other], settings)
    assert (found["texts"], found["differ"], found["wrong"]) == (2, 1, 1)
    padding = count_differences([text], [[4000, *right[1:]]], settings)
    assert padding["widest_gap"] == float("inf")


SMALLEST = "--like small-target --draft small-draft --device cpu --threads 1 --prompts 1 --tokens 6"


def run(tmp_path, *options: str) -> tuple[int, dict[str, dict]]:
    """Run the benchmark; return its exit status and the figures by name."""
    file = tmp_path / "figures.jsonl"
    status = main([*SMALLEST.split(), "--turns", "1", "--output", str(file), *options])
    lines = map(json.loads, file.read_text().splitlines())
    return status, {line.pop("name"): line for line in lines}


@pytest.mark.heavy
def test_engines_are_measured_alone_and_in_triton_and_every_output_is_checked(tmp_path):
    status, figures = run(tmp_path, "--at-once", "3", "--instances", "2")
    assert status == 0
    steps = ["step", "drafts 4", "drafts 8", "verifies 5", "step of 16 texts"]
    served = {name: found for name, found in figures.items() if name.startswith("Triton ")}
    assert [name for name in figures if name not in served] == [
        *("machine", "pair", "copy within the device"),
        *(f"{role} {step}" for role in ("target", "draft") for step in steps),
        *("target alone", "loop, draft_len 4", "loop, draft_len 8"),
        *("transformers plain", "transformers assisted"),
    ]
    alone = [found for name, found in figures.items() if name not in served and "texts" in found]
    assert [(found["texts"], found["differ"]) for found in alone] == [(1, 0)] * 5
    assert figures["machine"]["paged"] is True
    drafters = ("none", "draft_model 4", "draft_model 8", "draft_model auto")
    assert list(served) == [
        "Triton has started",
        *(f"Triton {name}" for name in (*drafters, "draft_model 4 ahead true")),
        *("Triton prompt_lookup served", "Triton hybrid served"),
        *(f"Triton {name}, sampled" for name in (*drafters[:2], "draft_model 4 by logits")),
        *(f"Triton {name}, 3 at once, 2 loops" for name in (*drafters[:2], drafters[3])),
    ]
    greedy = [found for name, found in served.items() if "texts" in found and "sampled" not in name]
    assert {found["differ_from_none"] for found in greedy} == {0}


def test_skipped_measurements_are_listed_in_the_figures(tmp_path):
    status, figures = run(tmp_path, "--minutes", "0")
    assert list(figures) == ["machine", "pair", "left out: small-target"]
    assert status == 0


@pytest.fixture
def figures(tmp_path):
    return FigureLog(tmp_path / "figures.jsonl")


def names(tmp_path) -> list[str]:
    return [json.loads(x)["name"] for x in (tmp_path / "figures.jsonl").read_text().splitlines()]


def test_a_measurement_that_would_exceed_the_time_budget_is_skipped(tmp_path, figures):
    now, done = [100.0], []
    budget = TimeBudget(figures, 10, lambda: now[0])

    def measure(name, seconds):
        now[0] += seconds
        done.append(name)

    budget.run("long", "one", lambda: measure("one", 4))
    budget.run("long", "two", lambda: measure("two", 3))
    budget.run("long", "three", lambda: measure("three", 1))  # expected to take 4 s; 3 s are left
    budget.run("short", "four", lambda: measure("four", 3))
    budget.run("short", "five", lambda: measure("five", 0))
    assert done == ["one", "two", "four"]
    assert names(tmp_path) == ["left out: three", "left out: five"]


def test_a_part_of_a_time_budget_ends_before_the_whole(figures):
    now = [100.0]
    budget = TimeBudget(figures, 10, lambda: now[0])
    now[0] += 2
    part = budget.part(0.25)
    now[0] += 2
    assert (part.left, budget.left) == (0, 6)


def test_other_measurements_continue_after_a_failure(tmp_path, figures, caplog):
    budget = TimeBudget(figures, 10, lambda: 100.0)

    def fail():
        raise ValueError("no such kernel\nand more")

    budget.run("a", "graphs", fail)
    budget.run("a", "steps", lambda: figures.add("steps", ms=1.0))
    assert names(tmp_path) == ["failed: graphs", "steps"]
    assert figures.num_failed == 1
    assert "no such kernel" in caplog.text
