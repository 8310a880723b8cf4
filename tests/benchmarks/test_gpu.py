"""Figures of the GPU benchmark: written as they come, and of texts that were checked."""

import json

import torch
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
