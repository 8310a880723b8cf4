"""`tandem generate` without a server: its options, its colours, its closing line."""

import argparse
import io

import pytest
from rich.console import Console

from tandem.contract import entry
from tandem.tools import cli as command
from tandem.tools.client.client import Answer, Chunk, Totals
from tandem.tools.commands import generate
from tandem.tools.triton import running

CHUNKS = [
    Chunk("ab", [1, 2], Totals(1, 4, 1), None, 0.5),
    Chunk("\x1bc", [3, 4], Totals(2, 8, 2), "length", 1.0),
]


class ScriptedClient:
    """Answers with the chunks it was given; every id is a character."""

    def __init__(self, *script, detokenizer="postprocessing"):
        self.script = script
        self.detokenizer = detokenizer
        self.closed = False

    def serves(self, model):
        return self.detokenizer == model

    def stream(self, model, inputs):
        try:
            for step in self.script:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.closed = True

    def complete_texts(self, model, rows):
        return ["x" * len(row) for row in rows]


def parse(*arguments):
    parser = argparse.ArgumentParser()
    generate.add_options(parser)
    return parser.parse_args(arguments)


def shown(*script, detokenizer="postprocessing", **console):
    file = io.StringIO()
    answer = Answer()
    client = ScriptedClient(*script, detokenizer=detokenizer)
    try:
        generate.show(client, "m", {}, answer, Console(file=file, **console))
    finally:
        assert client.closed
    return file.getvalue()


def test_options_become_inputs_and_what_is_left_out_is_not_sent():
    options = parse(
        *("x", "--drafter", "none", "--top-k", "3", "--temperature", "0.5", "--seed", "9"),
        *("--stop", "a", "--stop", "b", "--no-use-draft-logits"),
    )
    assert generate.given(options) == {
        entry.DRAFTER: "none",
        entry.TOP_K: 3,
        entry.TEMPERATURE: 0.5,
        entry.SEED: 9,
        entry.STOP_WORDS: ["a", "b"],
        entry.USE_DRAFT_LOGITS: False,
    }
    assert generate.given(parse("x")) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "argument --seed: -1 does not lie in 0..18446744073709551615"),
        (["--max-tokens", "5000000000"], "argument --max-tokens: 5000000000 does not lie in"),
        (["--top-k", "x"], "argument --top-k: 'x' is not a whole number"),
        (["--top-p", "x"], "argument --top-p: invalid float value: 'x'"),
        (["--beams", "2"], "unrecognized arguments: --beams 2"),
    ],
)
def test_wrong_option_is_named_in_one_line(arguments, message, capsys):
    assert command.main(["generate", "x", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"tandem: {message}")


def test_missing_server_is_one_line_that_says_how_to_start_one(capsys, monkeypatch):
    monkeypatch.setattr(running, "running_servers", list)
    assert command.main(["generate", "x", "--url", "127.0.0.1:1"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == ("tandem: no server answers at 127.0.0.1:1; start one with: tandem up\n")


def test_text_is_untouched_when_it_does_not_go_to_a_terminal():
    assert shown(*CHUNKS) == "ab\x1bc\n"


def test_accepted_text_is_coloured_on_a_terminal_and_control_characters_are_pictures():
    text = shown(*CHUNKS, force_terminal=True, color_system="standard")
    assert text == "\x1b[32ma\x1b[0mb\x1b[32m␛\x1b[0mc\n"


def test_nothing_is_coloured_when_the_user_wants_no_colour():
    assert shown(*CHUNKS, force_terminal=True, no_color=True) == "ab␛c\n"


def test_nothing_is_coloured_when_the_server_cannot_tell_texts_apart():
    text = shown(*CHUNKS, detokenizer=None, force_terminal=True, color_system="standard")
    assert text == "ab␛c\n"


def test_request_is_cancelled_when_showing_is_interrupted():
    with pytest.raises(KeyboardInterrupt):
        shown(CHUNKS[0], KeyboardInterrupt())


def test_closing_line_tells_the_figures():
    answer = Answer()
    for chunk in CHUNKS:
        answer.add(chunk)
    assert generate.closing_line(answer) == (
        "4 tokens, 4.0 tokens/s, first token after 500 ms, acceptance 25%, "
        "2.00 tokens per round, length"
    )


def test_closing_line_says_what_did_not_happen():
    assert generate.closing_line(Answer()) == (
        "0 tokens, 0.0 tokens/s, no first token, nothing drafted, cancelled"
    )
