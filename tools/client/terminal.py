"""Shows answers on a terminal: while they stream, their statistics, and a table of their rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tandem.contract.entry import KINDS, Kind
from tandem.tools.client.answer import Answer, AnswerChunk, Answers
from tandem.tools.client.client import Client, Inputs

# Text that the target generated itself has no style.
STYLES: Mapping[Kind | None, str] = {"accepted": "green", "forced": "magenta"}
# Generated control characters must not reach a terminal, so they are shown as control pictures.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def table_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for all tables without one."""
    return Console(width=None if Console().is_terminal else 132)


class Span(NamedTuple):
    """Text with one style. kind: a key of ``STYLES``, or None for the target's own text."""

    text: str
    kind: Kind | None = None


class Spans:
    """Splits the text of an answer's chunks into spans, by the kinds of the tokens.

    A token can arrive in an earlier chunk than its text, because text that may begin a stop string
    is held back.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[Kind | None, int]] = deque()  # kind, characters still to come

    def split(self, chunk: AnswerChunk) -> Iterator[Span]:
        """Yield the spans of a chunk. Their texts, joined, are the text of the chunk."""
        for number, length in zip(chunk.kinds, chunk.text_lengths, strict=True):
            kind = KINDS[number]
            self._due.append((kind if kind in STYLES else None, length))
        for origin, pieces in groupby(self._pieces(chunk.text), lambda piece: piece.kind):
            yield Span("".join(piece.text for piece in pieces), origin)

    def _pieces(self, text: str) -> Iterator[Span]:
        """Yield the text of each token, then any rest that belongs to no token.

        The rest is an unfinished character.
        """
        while text and self._due:
            kind, length = self._due.popleft()
            if length > len(text):
                self._due.appendleft((kind, length - len(text)))
            if length:
                yield Span(text[:length], kind)
            text = text[length:]
        if text:
            yield Span(text)


def show(client: Client, model: str, inputs: Inputs, answer: Answer, console: Console) -> None:
    """Print an answer while it arrives, and collect it in ``answer`` even if the request fails.

    On a color terminal, accepted draft tokens and forced tokens are colored.
    """
    tells_origins = bool(console.is_terminal and console.color_system and not console.no_color)
    chunks = client.stream(model, inputs, tells_origins=tells_origins)
    spans = Spans()
    try:
        for chunk in chunks:
            answer.add(chunk)
            for span in spans.split(chunk):  # a single span if the kinds weren't requested
                text = span.text.translate(PICTURES) if console.is_terminal else span.text
                console.out(text, style=STYLES.get(span.kind), end="", highlight=False)
                console.file.flush()
    finally:
        chunks.close()
        if answer.text and not answer.text.endswith("\n"):
            console.out("", highlight=False)


def closing_line(answer: Answer) -> str:
    first, rates = answer.seconds_to_first_token, Answers([answer])
    rate = rates.acceptance_rate
    return ", ".join(
        (
            f"{answer.num_tokens} tokens",
            f"{rates.tokens_per_second:.1f} tokens/s",
            "no first token" if first is None else f"first token after {first * 1000:.0f} ms",
            "nothing drafted" if rate is None else f"acceptance {rate:.0%}",
            *([] if rate is None else [f"{rates.tokens_per_round or 0:.2f} tokens per round"]),
            answer.finish_reason or "cancelled",
        )
    )


COLUMNS = (
    *("#", "drafter", "ahead", "asked", "stop", "drafted", "accepted"),
    *("draft ms", "target ms"),
)

LEGEND = (
    "asked: draft length that the loop requested; stop: probability below which the draft ends "
    "early; ahead: branches drafted during the last verification, *: one was used"
)


def explanation(statistics: Mapping[str, Any]) -> Table:
    """Return a table with one row per round.

    statistics: the `spec_decode_statistics` of an answer.

    Columns: *ahead* is the number of branches that were drafted during the previous verification,
    with a star if the round used one of them. *asked* is the draft length that the loop requested.
    *stop* is the probability below which the draft model ends its draft early. Times are measured
    by the engines. A round without a draft shows how many plain tokens the target generated alone.
    """
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))  # within 80 columns
    for column in table.columns:
        column.justify = "left" if column.header == "drafter" else "right"
    for number, round_ in enumerate(statistics["rounds"], start=1):
        table.add_row(str(number), *_cells(round_))
    return table


def _cells(round_: Mapping[str, Any]) -> tuple[str, ...]:
    target = f"{1000 * round_['target_seconds']:.1f}"
    if round_["num_plain_tokens"]:
        alone = f"none: {round_['num_plain_tokens']} plain"
        return (alone, "", "", "", "", "", "", target)
    stop, branches = round_["stop_probability"], round_["num_branches"]
    return (
        round_["drafter"],
        f"{branches}{'*' if round_['drafted_ahead'] else ''}" if branches else "",
        str(round_["planned_tokens"] or round_["num_draft_tokens"]),
        f"{stop:g}" if stop else "",
        str(round_["num_draft_tokens"]),
        str(round_["num_accepted_tokens"]),
        f"{1000 * round_['draft_seconds']:.1f}",
        target,
    )
