"""`tandem summarize` computes scores and handles options (tested without a server)."""

import builtins
import io
import json
import shlex
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from checkpoints import write_empty, write_tokenizer
from rich.console import Console
from tokenizers import Tokenizer

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.benchmark.load_generator import MeasuredServer, measured_server
from tandem.tools.client.answer import Answer, Answers, AnswerTotals
from tandem.tools.client.dataset import Item, read_items
from tandem.tools.commands import summarize
from tandem.tools.commands.command_line import make_parser
from tandem.tools.commands.options import DEMO
from tandem.tools.commands.run_options import DraftingOptions, PromptLookupConfig
from tandem.tools.commands.summarize import answer_in_turns, speculation_inputs
from tandem.tools.errors import TandemError
from tandem.tools.evaluation import MEASURES, AccuracyComparison, HuggingFace, cut, mean_rouge
from tandem.tools.profiles import deployment

DOCUMENTS = """--test_hf --test_trt_llm --check_accuracy --hf_model_dir hf --engine_dir ./target \
--batch_size=1 --prompt_lookup_config="[10,2,[0]]" --kv_cache_enable_block_reuse"""
ITEMS = [Item("a", "the cat sat", "one"), Item("b", "the dog", "two")]


def options(line):
    return make_parser("summarize").read(shlex.split(line))


def answers(*texts, rounds=10, drafted=0, accepted=0):
    totals = AnswerTotals(rounds, drafted, accepted)
    return Answers([Answer(text, 20, totals, "stop", 0.5) for text in texts])


def compared(*texts, **figures):
    columns = {"none": answers("the cat sat", "the dog"), "hybrid": answers(*texts, **figures)}
    return AccuracyComparison(ITEMS, columns)


class ScriptedClient:
    """A client that returns the request's text as the answer, and records the request."""

    def __init__(self):
        self.asked = []

    def answer(self, model, inputs):
        asked = inputs[entry.TEXT_INPUT], inputs[entry.DRAFTER], inputs[entry.MAX_TOKENS]
        self.asked.append((*asked, inputs.get(entry.STOP_WORDS)))
        return Answer(f"{model} {asked[1]}")


def test_nvidias_documented_command_works():
    given = options(DOCUMENTS)
    assert (given.test_hf, given.check_accuracy, str(given.hf_model_dir)) == (True, True, "hf")
    assert given.rouge1_threshold == 15
    drafting = summarize.run_options.read_drafting(given)
    assert drafting == DraftingOptions(prompt_lookup=PromptLookupConfig(10, 2, [0]))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("--batch-size 2", 2, "argument --batch-size: invalid choice: 2 (choose from 1)"),
        (
            "--check-accuracy --rouge1-threshold nan",
            2,
            "argument --rouge1-threshold: must be a finite number; got 'nan'",
        ),
        ("--url h:1 --profile p", 2, "set only one of --url and --profile"),
        ("--engine-dir e --profile p", 2, "set only one of --profile and --engine-dir"),
        ("--draft-engine-dir d", 2, "--draft-engine-dir needs --engine-dir; set both"),
        ("--model x", 2, "--model needs --url; set both"),
        ("--json /", 2, "argument --json: can't write /: it is a folder"),
        ("--dataset absent.jsonl", 1, "absent.jsonl: No such file or directory"),
        (
            "--drafter none",
            1,
            "nothing to compare with drafter 'none'; set --drafter to hybrid",
        ),
        ("--url h:1 --test-hf", 2, "--test-hf needs --hf-model-dir, the target's checkpoint"),
    ],
)
def test_impossible_options_are_rejected_in_one_line(arguments, status, message, capsys):
    assert command.main(["summarize", *shlex.split(arguments)]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tandem: {message}")
    assert shown.err.count("\n") == 1


def test_an_error_says_how_to_install_rouge(monkeypatch, capsys):
    really = builtins.__import__

    def without(name, *more):
        if name.startswith("rouge_score"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return really(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert command.main(["summarize"]) == 1
    assert capsys.readouterr().err == (
        "tandem: can't import rouge_score.rouge_scorer; install Tandem with the extra 'summarize' "
        "(README, Install)\n"
    )


@pytest.fixture
def own(tmp_path):
    """A function that returns the server of a checkpoint, with changed decoding settings."""
    write_empty(tmp_path, write_tokenizer(tmp_path))
    profile = deployment.for_checkpoints(tmp_path, None).profile

    def server(**decoding):
        decoding = profile.decoding.model_copy(update=decoding)
        return measured_server(deployment.check(profile.model_copy(update={"decoding": decoding})))

    return server


def test_config_strings_and_the_drafter_option_select_the_drafter(own):
    lookup = DraftingOptions(prompt_lookup=PromptLookupConfig(10, 2, [0]))
    plain, server = DraftingOptions(), own()
    assert speculation_inputs(None, lookup, server) == lookup.inputs
    assert speculation_inputs(None, plain, server) == {entry.DRAFTER: "prompt_lookup"}
    with pytest.raises(TandemError, match="--drafter must be one of prompt_lookup, none for"):
        speculation_inputs("hybrid", lookup, server)


def test_the_baseline_is_not_compared_with_itself(own):
    server = own(drafter="none")
    with pytest.raises(TandemError, match="nothing to compare with drafter 'none'"):
        speculation_inputs(None, DraftingOptions(), server)
    lookup = {entry.DRAFTER: "prompt_lookup"}
    assert speculation_inputs("prompt_lookup", DraftingOptions(), server) == lookup


def test_each_item_is_primed_and_then_alternates_between_drafters():
    client = ScriptedClient()
    items = [replace(ITEMS[0], id="[/a]", stop=("!",)), ITEMS[1]]
    asked = options("--max-output-len 30")
    columns = answer_in_turns(client, "m", items, {entry.DRAFTER: "hybrid"}, asked)
    assert client.asked == [
        ("a", "hybrid", 2, ("!",)),
        ("a", "none", 30, ("!",)),
        ("a", "hybrid", 30, ("!",)),
        ("b", "hybrid", 2, None),
        ("b", "hybrid", 30, None),
        ("b", "none", 30, None),
    ]
    assert {name: column.texts for name, column in columns.items()} == {
        "none": ["m none"] * 2,
        "hybrid": ["m hybrid"] * 2,
    }


def test_rouge_scores_are_f_measures_in_percent():
    scores = mean_rouge(["the cat", "x"], ["the cat sat", "y"])
    assert scores == pytest.approx({"rouge1": 40, "rouge2": 100 / 3, "rougeL": 40, "rougeLsum": 40})


def test_equal_texts_without_words_score_100():
    assert mean_rouge(["?!", ""], ["?!", ""]) == dict.fromkeys(MEASURES, 100)


def test_tokens_per_round_are_not_shown_without_drafts():
    rounds = [
        column["tokens_per_round"] for column in compared("x", "y").as_json()["columns"].values()
    ]
    assert rounds == [None, None]
    drafted = compared("x", "y", drafted=40, accepted=10).as_json()["columns"]["hybrid"]
    assert (drafted["tokens_per_round"], drafted["acceptance_rate"]) == (2, 0.25)
    assert (drafted["num_tokens"], drafted["tokens_per_second"]) == (40, 40)


def test_the_table_has_one_column_per_model():
    file = io.StringIO()
    Console(file=file, width=100).print(compared("the cat sat", "the cat").table())
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert rows[0] == ["none", "hybrid"]
    assert rows[1] == ["against", "the", "reference"]
    assert rows[2] == ["ROUGE-1", "100.00", "75.00"]
    assert ["ROUGE-1", "-", "75.00"] in rows
    assert ["same", "as", "baseline", "2/2", "1/2"] in rows
    assert ["tokens/s", "40.0", "40.0"] in rows


def test_the_json_file_has_statistics_and_outputs():
    written = json.loads(json.dumps(compared("the cat sat", "the cat").as_json()))
    assert written["columns"]["hybrid"]["against"]["none"]["rouge1"] == 75
    assert written["columns"]["hybrid"]["num_identical_to_baseline"] == 1
    assert written["items"][1] == {
        "id": "two",
        "summary": "the dog",
        "texts": {"none": "the dog", "hybrid": "the cat"},
    }


def test_the_json_is_written_even_if_the_table_cannot_be_printed(tmp_path, monkeypatch):
    columns = {"none": answers("the cat"), "hybrid": answers("the cat")}
    monkeypatch.setattr(MeasuredServer, "running", lambda _: nullcontext("127.0.0.1:1"))
    monkeypatch.setattr(summarize, "answer_in_turns", lambda *_: columns)
    path = tmp_path / "summarize.json"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert command.main(["summarize", "--limit", "1", "--json", str(path)]) == 1
        monkeypatch.undo()
    assert list(json.loads(path.read_text())["columns"]) == ["none", "hybrid"]


def test_scores_below_either_threshold_are_reported():
    assert compared("the cat sat", "the dog").shortfalls(100) == []
    comparison = compared("the cat sat", "the cat")
    different = "ROUGE-1 of hybrid against none must be at least 95; got 75.00"
    assert comparison.shortfalls(15) == [different]
    assert comparison.shortfalls(80) == [
        "ROUGE-1 of hybrid against the reference must be at least 80; got 75.00",
        different,
    ]


def test_shipped_items_are_valid_python_functions():
    items = read_items(summarize.DATASET)
    assert len(items) >= 20
    assert len({item.id for item in items}) == len(items)
    for item in items:
        compile(f'{item.text}{item.summary}"""\n', item.id, "exec")


def test_items_can_lack_an_id_and_have_several_stop_strings(tmp_path):
    path = tmp_path / "items.jsonl"
    rows = [{"text": "a", "summary": "b", "stop": stop} for stop in (".", ["x", "y"])]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_items(path) == [Item("a", "b", "1", (".",)), Item("a", "b", "2", ("x", "y"))]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "items.jsonl:1: summary: is missing"),
        ({"text": 1, "summary": "b"}, ":1: text: must be a valid string; got 1"),
        (
            {"text": "a", "summary": "b", "stop": [""]},
            "stop: must have at least 1",
        ),
    ],
)
def test_the_error_names_the_line_of_an_invalid_item(tmp_path, row, message):
    (tmp_path / "items.jsonl").write_text(json.dumps(row))
    with pytest.raises(TandemError, match=message):
        read_items(tmp_path / "items.jsonl")


def test_output_is_cut_before_the_first_stop_string():
    assert cut("one. two! three", ("!", ".")) == ("one", True)
    assert cut("one", ("!",)) == ("one", False)


def test_the_prompt_for_transformers_is_not_truncated(tmp_path):
    """The server ignores the truncation that training may have left in tokenizer.json."""
    folder = shutil.copytree(DEMO / "tokenizer", tmp_path / "tokenizer")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.save(str(folder / "tokenizer.json"))
    whole, truncated = (
        HuggingFace(DEMO / "target", tokenizer).answer("def main():\n    return", 8).text
        for tokenizer in (DEMO / "tokenizer", folder)
    )
    assert truncated == whole
