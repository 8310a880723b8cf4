"""Answers are shown with colors, safe control characters and a summary line."""

import io

import pytest
from rich.console import Console

from tandem.contract.entry import KINDS
from tandem.tools.client import terminal
from tandem.tools.client.answer import Answer, AnswerChunk, AnswerTotals

ROUND = [KINDS.index("accepted"), KINDS.index("correction")]
CHUNKS = [
    AnswerChunk("ab", [1, 2], AnswerTotals(1, 4, 1), None, 0.5, None, ROUND, [1, 1]),
    AnswerChunk("\x1bc", [3, 4], AnswerTotals(2, 8, 2), "length", 1.0, None, ROUND, [1, 1]),
]


class ScriptedClient:
    """A client that answers with the given chunks."""

    def __init__(self, *script):
        self.script = script
        self.closed = False

    def stream(self, model, inputs, *, tells_origins):
        self.tells_origins = tells_origins
        try:
            for step in self.script:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.closed = True


def shown(*script, **console):
    file = io.StringIO()
    answer = Answer()
    client = ScriptedClient(*script)
    out = Console(file=file, **console)
    try:
        terminal.show(client, "m", {}, answer, out)
    finally:
        assert client.closed
        assert client.tells_origins == ("color_system" in console)
    return file.getvalue()


def test_output_is_unchanged_if_it_is_not_printed_to_a_terminal():
    assert shown(*CHUNKS) == "ab\x1bc\n"


def test_accepted_text_is_colored_and_control_characters_are_replaced():
    text = shown(*CHUNKS, force_terminal=True, color_system="standard")
    assert text == "\x1b[32ma\x1b[0mb\x1b[32m␛\x1b[0mc\n"


def test_an_interrupt_cancels_the_request():
    with pytest.raises(KeyboardInterrupt):
        shown(CHUNKS[0], KeyboardInterrupt())


def test_the_text_is_joined_and_the_summary_line_shows_the_statistics():
    answer = Answer()
    empty = AnswerChunk("", [], AnswerTotals(), None, 0.1)
    for chunk in (empty, *CHUNKS):
        answer.add(chunk)
    assert answer.text == "ab\x1bc"
    assert terminal.closing_line(answer) == (
        "4 tokens, 4.0 tokens/s, first token after 500 ms, acceptance 25%, "
        "2.00 tokens per round, length"
    )


def test_the_summary_line_of_an_empty_answer_has_no_statistics():
    assert terminal.closing_line(Answer()) == (
        "0 tokens, 0.0 tokens/s, no first token, nothing drafted, cancelled"
    )
