"""Shows answers on a terminal: as they stream, and what they took."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from tandem.contract.entry import Kind
from tandem.tools.client.client import Answer, Answers, Client, Inputs
from tandem.tools.client.spans import Spans

STYLES: Mapping[Kind | None, str] = {"accepted": "green", "forced": "magenta"}
# A control character in a generated text must not reach a terminal: it is shown as a picture.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def console_of_width(width: int) -> Console:
    """Return a console as wide as the terminal, or as ``width`` where there is none."""
    return Console(width=None if Console().is_terminal else width)


def show(client: Client, model: str, inputs: Inputs, answer: Answer, console: Console) -> None:
    """Print an answer as it comes, and keep it in ``answer``, however it ends.

    On a terminal with colours, accepted draft tokens, and those that a guide forces, have another
    colour than the target's own.
    """
    tells_origins = coloured(console)
    chunks = client.stream(model, inputs, tells_origins=tells_origins)
    spans = Spans()
    try:
        for chunk in chunks:
            answer.add(chunk)
            for span in spans.split(chunk):  # without origins, the whole text is one span
                text = span.text.translate(PICTURES) if console.is_terminal else span.text
                console.out(text, style=STYLES.get(span.kind), end="", highlight=False)
                console.file.flush()
    finally:
        chunks.close()
        if answer.text and not answer.text.endswith("\n"):
            console.out("", highlight=False)


def coloured(console: Console) -> bool:
    return console.is_terminal and not console.no_color and console.color_system is not None


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
