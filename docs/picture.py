"""Draws README's picture: answers of the demo as a terminal shows them, accepted tokens in green.

`make picture` runs it: it serves the demo's pair and writes docs/demo.svg anew.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tandem.contract import entry as tensors
from tandem.tools.client.client import Answer, Answers, Client, inputs_for
from tandem.tools.client.terminal import show
from tandem.tools.commands.demo import last_lines, read_prompts
from tandem.tools.commands.options import EMBEDDED, PROMPTS
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PICTURE = Path(__file__).with_name("demo.svg")
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # they would be asked of another host
WIDTH = 84
PROMPT = "show-3"
PROMPT_LINES = 8
MAX_TOKENS = 96


def main() -> None:
    """Serve, ask, draw."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    prompt = next(prompt for prompt in read_prompts(PROMPTS) if prompt.id == PROMPT)
    planned = deployment.load(EMBEDDED)
    with serving(planned) as server, Client(server.grpc_url) as client:
        model = planned.stream_entry.name
        inputs = inputs_for(prompt.text, MAX_TOKENS, {tensors.DRAFTER: "draft_model"})
        console.out(last_lines(prompt.text, PROMPT_LINES), style="dim", end="", highlight=False)
        answer = Answer()
        show(client, model, inputs, answer, console)
    console.print(caption(answer))
    PICTURE.write_text(FONTS.sub("", console.export_svg(title="make demo")))


def caption(answer: Answer) -> Text:
    """Say what the colours mean, and what this answer's rounds came to."""
    rates = Answers([answer])
    return Text(
        f"\ngreen: draft tokens that the target accepted "
        f"({rates.acceptance_rate:.0%}); {rates.tokens_per_round:.2f} tokens per round",
        style="dim",
    )


if __name__ == "__main__":
    main()
