"""How answers are shown: colours, pictures of control characters, the closing line."""

import io

import pytest
from rich.console import Console

from tandem.tools.client import terminal
from tandem.tools.client.client import Answer, AnswerChunk, AnswerTotals

CHUNKS = [
    AnswerChunk("ab", [1, 2], AnswerTotals(1, 4, 1), None, 0.5),
    AnswerChunk("\x1bc", [3, 4], AnswerTotals(2, 8, 2), "length", 1.0),
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


def shown(*script, detokenizer="postprocessing", **console):
    file = io.StringIO()
    answer = Answer()
    client = ScriptedClient(*script, detokenizer=detokenizer)
    try:
        terminal.show(client, "m", {}, answer, Console(file=file, **console))
    finally:
        assert client.closed
    return file.getvalue()


def test_text_is_untouched_when_it_does_not_go_to_a_terminal():
    assert shown(*CHUNKS) == "ab\x1bc\n"


def test_accepted_text_is_coloured_on_a_terminal_and_control_characters_are_pictures():
    text = shown(*CHUNKS, force_terminal=True, color_system="standard")
    assert text == "\x1b[32ma\x1b[0mb\x1b[32m␛\x1b[0mc\n"


def test_nothing_is_coloured_when_the_user_wants_no_colour():
    assert shown(*CHUNKS, force_terminal=True, no_color=True) == "ab␛c\n"


def test_nothing_is_coloured_when_the_server_does_not_separate_texts():
    text = shown(*CHUNKS, detokenizer=None, force_terminal=True, color_system="standard")
    assert text == "ab␛c\n"


def test_request_is_cancelled_when_showing_is_interrupted():
    with pytest.raises(KeyboardInterrupt):
        shown(CHUNKS[0], KeyboardInterrupt())


def test_closing_line_has_the_statistics():
    answer = Answer()
    for chunk in CHUNKS:
        answer.add(chunk)
    assert terminal.closing_line(answer) == (
        "4 tokens, 4.0 tokens/s, first token after 500 ms, acceptance 25%, "
        "2.00 tokens per round, length"
    )


def test_closing_line_says_what_did_not_happen():
    assert terminal.closing_line(Answer()) == (
        "0 tokens, 0.0 tokens/s, no first token, nothing drafted, cancelled"
    )
