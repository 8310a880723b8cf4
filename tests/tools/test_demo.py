"""The report of `tandem demo`."""

import io
import json

from rich.console import Console

from tandem.tools.client.client import Answer, AnswerTotals
from tandem.tools.client.dataset import DatasetPrompt
from tandem.tools.commands import demo
from tandem.tools.commands.demo import PromptComparison, cells


def answer(text, seconds, rounds=10, drafted=0, accepted=0):
    return Answer(text, 20, AnswerTotals(rounds, drafted, accepted), "length", seconds, 0.1)


def comparison(name="one", text="same", said="same", kind="edit"):
    control = [answer(text, seconds, 20) for seconds in (2.0, 9.0, 1.0)]
    speculative = [answer(said, seconds, 10, 40, 10) for seconds in (1.0, 0.5, 7.0)]
    return PromptComparison(DatasetPrompt("x", kind, name), control, speculative)


def report(*comparisons):
    file = io.StringIO()
    status = demo.report(comparisons, "hybrid", Console(file=file, width=100))
    return status, file.getvalue()


def test_the_demo_uses_the_first_prompts_of_each_kind(tmp_path):
    path = tmp_path / "prompts.jsonl"
    kinds = {i: "edit" if i in (3, 7) else "completion" for i in range(9)}
    lines = [{"id": str(i), "kind": kinds[i], "prompt": f"def f{i}("} for i in range(9)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = [DatasetPrompt(f"def f{i}(", kinds[i], str(i)) for i in (0, 1, 2, 4, 3, 7)]
    assert demo.read_prompts(path) == wanted


def test_demo_statistics_use_median_times():
    assert cells([comparison()]) == ["20", "10.0", "20.0", "2.00x", "25%", "2.00", "yes"]


def test_the_total_row_sums_times_and_tokens():
    total = cells([comparison(), comparison(), comparison(said="sane")])
    assert total == ["60", "10.0", "20.0", "2.00x", "25%", "2.00", "NO"]


def test_statistics_show_a_dash_if_nothing_was_drafted():
    nothing = PromptComparison(
        DatasetPrompt("x", "edit", "one"), [answer("t", 1.0)], [answer("t", 1.0)]
    )
    assert "-" in cells([nothing])


def test_the_report_succeeds_if_all_outputs_are_equal():
    status, text = report(comparison("one", kind="completion"), comparison("two"))
    assert status == 0
    assert "different" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert [line.split("  ")[0] for line in text.splitlines() if line.endswith("yes")] == [
        *("one", "all completions"),
        *("two", "all edits"),
        "all",
    ]


def test_the_report_names_the_prompt_and_character_of_a_difference():
    status, text = report(comparison("one"), comparison("two", "the same", "the sane"))
    assert status == 1
    assert (
        "different: two: outputs differ at character 6: none has 'me', another drafter 'ne'"
        in text.splitlines()
    )


def test_the_report_splits_the_time_of_a_round():
    timed = comparison()
    for each in timed.speculative:
        each.statistics = {"target_seconds": 0.5, "draft_seconds": 0.25}
        each.seconds = 1.0
    _, text = report(timed)
    assert text.splitlines()[-2:] == [
        "A round with hybrid took 100.0 ms: 50.0 in the target, 25.0 in the draft,",
        "and 25.0 in Triton and the loop, which matters less with larger engines.",
    ]


def test_a_truncated_output_differs_at_its_end():
    assert comparison(said="sa").difference == (
        "one: outputs differ at character 2: none has 'me', another drafter ''"
    )


def test_only_the_end_of_a_long_prompt_is_shown():
    assert demo.last_lines("a\nb\nc", 3) == "a\nb\nc"
    assert demo.last_lines("a\nb\nc", 2) == "...\nb\nc"
