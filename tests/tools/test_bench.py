"""`tandem bench` computes correct statistics from given answers."""

import io
import json
import os
import resource
from pathlib import Path

import pytest
from rich.console import Console

from tandem.bls.drafters import registry as drafter_registry
from tandem.bls.drafters.registry import BASELINE as NONE
from tandem.bls.drafters.registry import DRAFT_MODEL, HYBRID, PROMPT_LOOKUP
from tandem.bls.settings import AUTO
from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.benchmark.load_generator import MeasuredServer
from tandem.tools.benchmark.report import Measurement, Report, Spread
from tandem.tools.benchmark.variant import (
    BASELINE,
    Scenario,
    Variant,
    make_variants,
    scenarios_of_file,
    scenarios_of_lengths,
)
from tandem.tools.client.answer import Answer, Answers, AnswerTotals
from tandem.tools.commands import bench
from tandem.tools.commands.bench import chosen_variants
from tandem.tools.commands.command_line import make_parser
from tandem.tools.commands.options import write_json
from tandem.tools.errors import TandemError

DRAFTS = Variant("draft_model", 4)


def options(*arguments):
    return make_parser("bench").read(arguments)


def answer(seconds, engine_seconds, **more):
    """Return an answer with twenty tokens in ten rounds."""
    totals = {"num_rounds": 10, "num_draft_tokens": 40, "num_accepted_tokens": 10}
    given = {name: more.pop(name) for name in totals.keys() & more}
    statistics = {"draft_seconds": 0.0, "target_seconds": engine_seconds}
    answer_totals = AnswerTotals(**totals | given)
    return Answer(
        num_tokens=20, totals=answer_totals, seconds=seconds, statistics=statistics, **more
    )


def repetition(seconds, engine_seconds, **more):
    return Answers([answer(seconds, engine_seconds, **more)])


def measurement(variant, *repetitions, baseline=None, alone=None, streamed=()):
    return Measurement("code", 1, variant, baseline, alone, list(repetitions), list(streamed))


def figures(ours, control):
    """Return statistics. ours, control: (seconds, engine seconds) of each repetition."""
    baseline = measurement(BASELINE, *(repetition(*pair, num_rounds=20) for pair in control))
    return measurement(DRAFTS, *(repetition(*pair) for pair in ours), baseline=baseline)


def test_overhead_lowers_the_efficiency():
    row = figures(ours=[(1.0, 0.8)], control=[(2.0, 2.0)])
    assert row.speedup.median == 2.0
    assert row.ideal_speedup.median == pytest.approx(2.5)
    assert row.spread("efficiency").median == pytest.approx(
        row.speedup.median / row.ideal_speedup.median
    )
    assert row.spread("orchestration_seconds").median == pytest.approx(0.02)


def test_a_slow_baseline_does_not_raise_the_efficiency():
    slow, fast = (figures([(1.0, 0.8)], [(seconds, 2.0)]) for seconds in (4.0, 2.0))
    assert slow.speedup.median == 2 * fast.speedup.median
    assert slow.spread("efficiency") == fast.spread("efficiency")


def test_speedup_compares_runs_of_the_same_repetition():
    """The speedup doesn't change if the machine is temporarily half as fast."""
    row = figures(ours=[(1.0, 0.8), (2.0, 1.6)], control=[(2.0, 2.0), (4.0, 4.0)])
    assert row.speedup == (2.0, 2.0, 2.0)
    assert row.spread("tokens_per_second") == pytest.approx((15.0, 11.0, 19.0))


def test_spread_ignores_missing_measurements():
    assert Spread.of(range(11)) == (5.0, 1.0, 9.0)
    assert Spread.of([None, 2.0]) == (2.0, 2.0, 2.0)
    assert Spread.of([None]) is None


def test_efficiency_is_unknown_if_engines_report_no_times():
    row = figures(ours=[(1.0, 0.0)], control=[(2.0, 0.0)])
    assert row.speedup.median == 2.0
    assert (row.spread("efficiency"), row.ideal_speedup, row.spread("orchestration_seconds")) == (
        None,
        None,
        None,
    )


def test_acceptance_and_tokens_per_round_average_all_answers():
    both = Answers([answer(1.0, 1.0), answer(1.0, 1.0, num_draft_tokens=10, num_rounds=30)])
    assert both.acceptance_rate == pytest.approx(20 / 50)
    assert both.tokens_per_round == 1.0
    assert repetition(1.0, 1.0, num_draft_tokens=0).acceptance_rate is None


def test_scaling_is_relative_to_one_stream_of_the_same_variant():
    alone = measurement(DRAFTS, repetition(1.0, 1.0))
    many = measurement(DRAFTS, Answers([answer(1.1, 1.0)] * 2, 1.1), alone=alone)
    assert alone.scaling is None
    assert many.scaling.median == pytest.approx(2 / 1.1)


def test_the_latency_of_a_chunk_is_divided_equally_among_its_tokens():
    streamed = answer(1.4, 1.0, arrivals=[(1.0, 1), (1.3, 3), (1.4, 1)])
    assert streamed.inter_token_seconds == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert streamed.gap_seconds == pytest.approx([0.3, 0.1])


def test_outputs_that_differ_from_the_baseline_are_counted():
    control = measurement(BASELINE, repetition(2.0, 2.0, text="same"))
    ours = measurement(
        DRAFTS,
        *(repetition(1.0, 1.0, text=text) for text in ("same", "other")),
        baseline=control,
        streamed=[repetition(1.0, 1.0, text="another")],
    )
    assert ours.num_different == 2


def test_only_meaningful_combinations_are_measured():
    kinds = [DRAFT_MODEL, PROMPT_LOOKUP, HYBRID]
    variants = make_variants(kinds, [4, AUTO], [None], use_draft_logits=False)
    assert list(map(str, variants)) == [
        "none",
        "draft_model 4",
        "draft_model auto",
        "prompt_lookup 4",
        "prompt_lookup auto",
        "hybrid 4",
        "hybrid auto",
    ]
    with pytest.raises(TandemError, match="nothing to compare with drafter 'none'"):
        make_variants([NONE], [AUTO], [None], use_draft_logits=False)


def test_drafting_ahead_is_measured_only_for_draft_models():
    variants = make_variants(
        [DRAFT_MODEL, PROMPT_LOOKUP], [4], ["true", "false"], use_draft_logits=False
    )
    assert list(map(str, variants)) == [
        "none",
        "draft_model 4 ahead true",
        "draft_model 4 ahead false",
        "prompt_lookup 4",
    ]
    assert variants[1].inputs["draft_ahead"] == "true"


def test_each_prompt_kind_becomes_a_scenario(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"kind": "edit", "prompt": "a"}, {"prompt": "b"}, {"kind": "edit", "prompt": "c"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert scenarios_of_file(path, 1) == [
        Scenario("edit", [{entry.TEXT_INPUT: "a"}]),
        Scenario("prompts", [{entry.TEXT_INPUT: "b"}]),
    ]


def test_a_repeated_prompt_length_is_measured_once():
    """Otherwise its rows would appear twice in the same table."""
    assert [one.name for one in scenarios_of_lengths((5, 7, 5), 1)] == ["5 tokens", "7 tokens"]


def report():
    control = measurement(BASELINE, repetition(2.0, 2.0, num_rounds=20, num_draft_tokens=0))
    ours = [
        measurement(Variant("draft_model", length), repetition(seconds, 0.8), baseline=control)
        for length, seconds in ((4, 1.0), (AUTO, 0.9))
    ]
    return Report("here", {}, [control, *ours])


def test_costs_are_the_last_ones_that_auto_measured_at_each_load():
    def measured(plain_ms, load):
        drafts = [{"num_tokens": 2, "ms": 8.0, "tokens_per_round": 2.4}]
        auto = {"load": load, "plain_ms_per_token": plain_ms, "drafts": drafts}
        return Answer(statistics={"auto": auto})

    answers = [measured(6.0, 1), measured(5.0, 1), measured(9.0, 16), Answer()]
    row = measurement(Variant("hybrid", AUTO), Answers(answers))
    fixed = measurement(DRAFTS, Answers([measured(7.0, 4)]))
    alone, busy = Report("here", {}, [fixed, row]).costs()
    assert alone.title.plain == "what hybrid auto has measured with 1 at once"
    shown = [list(column.cells) for column in alone.columns]
    assert shown == [["none", "2"], ["5.0", "8.0"], ["1.00", "2.40"], ["200", "300"]]
    assert list(busy.columns[1].cells) == ["9.0", "8.0"]


def test_the_table_shows_only_measured_columns():
    file = io.StringIO()
    for table in report().tables():
        Console(file=file, width=132).print(table)
    shown = file.getvalue()
    assert "here: code" in shown
    assert "ahead" not in shown
    assert "first token" not in shown
    row = next(line for line in shown.splitlines() if line.startswith("draft_model"))
    assert row.split() == [
        *("draft_model", "4", "20.0", "2.00", "2.50", "0.800", "20.00", "25.0%", "2.00"),
    ]  # a single repetition has no spread


def test_no_figure_is_cut_off_on_a_narrow_terminal():
    file = io.StringIO()
    for table in report().tables():
        Console(file=file, width=50).print(table)
    assert "\u2026" not in file.getvalue()


def test_the_table_shows_the_name_of_a_scenario_literally():
    file = io.StringIO()
    [row] = [measurement(BASELINE, repetition(2.0, 2.0))]
    row.scenario = "edit [/a] :smile:"
    for table in Report("here", {}, [row]).tables():
        Console(file=file, width=132).print(table)
    assert "here: edit [/a] :smile:" in file.getvalue()


def test_the_json_is_written_even_if_the_table_cannot_be_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *_: report())
    path = tmp_path / "bench.json"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert command.main(["bench", "--profile", "emulated-zero", "--json", str(path)]) == 1
        monkeypatch.undo()
    assert json.loads(path.read_text())["served"] == "here"


def test_the_json_contains_medians_and_all_repetitions(tmp_path):
    write_json(tmp_path / "bench.json", report().as_json())
    written = json.loads((tmp_path / "bench.json").read_text())
    row = written["rows"][1]
    assert written["machine"]["cores"] >= 1
    assert row["speedup"] == {"median": 2.0, "p10": 2.0, "p90": 2.0}
    assert row["num_draft_tokens"] == "4"
    assert row["repetitions"][0]["engine_seconds"] == 0.8


def test_a_full_disk_keeps_the_earlier_json(tmp_path):
    path = tmp_path / "bench.json"
    write_json(path, "earlier")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(TandemError, match=f"can't write {path}: File too large"):
            write_json(path, "x" * 99)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(path.read_text()) == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_json_can_be_written_to_a_pipe():
    reader, writer = os.pipe()
    write_json(Path(f"/dev/fd/{writer}"), "x")
    os.close(writer)
    with open(reader) as pipe:
        assert json.load(pipe) == "x"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--num-draft-tokens", "4,x"],
            2,
            "argument --num-draft-tokens: must be a whole number of at least 1; got 'x'",
        ),
        (["--json", "absent/x.json"], 2, "argument --json: can't write absent/x.json"),
        (["--input-tokens", "9,9999999999"], 1, "--input-tokens must be less than 1008"),
        (["--url", "h:1", "--profile", "embedded"], 2, "set --url or --profile, not both"),
        (["--model", "bls"], 2, "--model needs --url"),
        (
            ["--profile", "emulated-zero", "--num-draft-tokens", "99"],
            1,
            "--num-draft-tokens must be at most 32, the maximum of emulated-zero; got 99",
        ),
        (
            ["--url", "127.0.0.1:1"],
            1,
            "no server responds at 127.0.0.1:1; start one with: tandem up",
        ),
    ],
)
def test_bench_errors_are_one_line(arguments, status, message, capsys):
    assert command.main(["bench", *arguments]) == status
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tandem: ")
    assert message in error


def test_the_drafter_of_the_server_is_measured_by_default():
    kinds = {kind.name: kind for kind in (PROMPT_LOOKUP, drafter_registry.BASELINE)}
    server = MeasuredServer("here:1", "bls_stream", kinds, "prompt_lookup", 16, 1024)
    assert list(map(str, chosen_variants(server, options()))) == ["none", "prompt_lookup served"]


def test_values_of_list_options_are_separated_by_commas():
    read = options("--concurrency", "1,16", "--num_draft_tokens", "4, auto")
    assert read.concurrency == (1, 16)
    assert read.num_draft_tokens == (4, AUTO)
