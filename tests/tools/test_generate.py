"""`tandem generate` handles its options correctly (tested without a server)."""

import io
from unittest.mock import MagicMock

import pytest

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.commands import generate
from tandem.tools.commands.command_line import make_parser


def parse(*arguments):
    return make_parser("generate").read(arguments)


def test_only_options_that_are_set_are_sent():
    options = parse(
        *("x", "--drafter", "none", "--top-k", "3", "--temperature", "0.5", "--seed", "9"),
        *("--stop", "a", "--stop", "b", "--no-use-draft-logits"),
    )
    assert generate.inputs_from_options(options) == {
        entry.DRAFTER: "none",
        entry.TOP_K: 3,
        entry.TEMPERATURE: 0.5,
        entry.SEED: 9,
        entry.STOP_WORDS: ["a", "b"],
        entry.USE_DRAFT_LOGITS: False,
    }
    assert generate.inputs_from_options(parse("x")) == {}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--seed", "-1"],
            2,
            "argument --seed: must be between 0 and 18446744073709551615; got -1",
        ),
        (["--max-tokens", "5000000000"], 2, "argument --max-tokens: must be between "),
        (["--top-k", "x"], 2, "argument --top-k: must be a whole number; got 'x'"),
        (["--top-p", "x"], 2, "argument --top-p: must be a finite number; got 'x'"),
        (["--top-p", "nan"], 2, "argument --top-p: must be a finite number; got 'nan'"),
        (
            ["--regex", "a", "--json-schema", "x"],
            2,
            "argument --json-schema: not allowed with argument --regex",
        ),
        (["--regex", ""], 2, "argument --regex: must not be empty"),
        (["--json-schema", "/dev/null"], 1, "--json-schema must not be empty"),
        (["--beams", "2"], 2, "unrecognized arguments: --beams 2"),
    ],
)
def test_the_error_names_an_invalid_option(arguments, status, message, capsys):
    assert command.main(["generate", "x", *arguments]) == status
    assert capsys.readouterr().err.startswith(f"tandem: {message}")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "input 'top_k' must be between 0 and 9; got 10",
            "--top-k must be between 0 and 9; got 10",
        ),
        (
            "inputs 'stop_words' and 'bad_words': 9 bytes in total; the limit is 8",
            "--stop and --bad: 9 bytes in total; the limit is 8",
        ),
        (
            "input 'lookup_pool' requires 'drafter' to be hybrid or prompt_lookup",
            "--lookup-pool requires --drafter to be hybrid or prompt_lookup",
        ),
        (
            "input 'drafter' must be one of hybrid, none in this deployment; got 'seed'",
            "--drafter must be one of hybrid, none in this deployment; got 'seed'",
        ),
        (
            "input 'lora_name': 'temperature' isn't known; choose one of: french",
            "--lora-name: 'temperature' isn't known; choose one of: french",
        ),
        (
            "invalid_guide: input 'guided_decoding_guide': 'min_p' and input 'seed' are wrong",
            "invalid_guide: --regex: 'min_p' and input 'seed' are wrong",
        ),
        ("input 'end_id' must be at least 0", "input 'end_id' must be at least 0"),
        ("model 'target' failed: no memory", "model 'target' failed: no memory"),
    ],
)
def test_server_errors_name_options_and_keep_the_text_of_the_user(given, shown):
    assert generate.use_option_names(given, parse("x", "--regex", "a")) == shown


def test_warnings_in_a_response_are_printed(monkeypatch, capsys):
    def answered(_client, _model, _inputs, answer, _console):
        answer.statistics = {"guide": {"warnings": ["uniqueItems is not enforced"]}}

    monkeypatch.setattr(generate, "Client", MagicMock())
    monkeypatch.setattr(generate, "show", answered)
    assert command.main(["generate", "x"]) == 0
    assert "\nwarning: uniqueItems is not enforced\n" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_schema_file_is_sent_unchanged(tmp_path, monkeypatch, encoding):
    schema = '{"type" : "object"}\n'
    (tmp_path / "a.json").write_text(schema, encoding)
    sent = {
        entry.GUIDED_DECODING_GUIDE_TYPE: "json_schema",
        entry.GUIDED_DECODING_GUIDE: schema,
    }
    assert (
        generate.inputs_from_options(parse("x", "--json-schema", str(tmp_path / "a.json"))) == sent
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(schema.encode())))
    assert generate.inputs_from_options(parse("x", "--json-schema", "-")) == sent
    assert generate.inputs_from_options(parse("x", "--regex", "a*")) == {
        entry.GUIDED_DECODING_GUIDE_TYPE: "regex",
        entry.GUIDED_DECODING_GUIDE: "a*",
    }
    assert generate.inputs_from_options(parse("x")) == {}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "can't read {}: No such file or directory"),
        (b"\xff", "can't read {}: it isn't UTF-8"),
    ],
)
def test_an_unreadable_schema_is_reported_in_one_line(tmp_path, content, line, capsys):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    assert command.main(["generate", "x", "--json-schema", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tandem: --json-schema: {line.format(path)}")
    assert error.count("\n") == 1


def test_prompt_and_schema_cannot_both_be_read_from_standard_input(capsys):
    assert command.main(["generate", "-", "--json-schema", "-"]) == 2
    assert "set the prompt or --json-schema to -, not both" in capsys.readouterr().err
