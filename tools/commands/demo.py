"""`tandem demo`: the same prompts with and without speculation, side by side."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.bls.drafters import registry as drafter_registry
from tandem.contract import entry as tensors
from tandem.tools.client.client import Answer, Client, inputs_for
from tandem.tools.client.terminal import STYLES, coloured, console_of_width, show
from tandem.tools.commands.options import EMBEDDED, PROMPTS
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROMPTS_OF_A_KIND = 4
MAX_TOKENS = 96
REPEATS = 3
CONTROL = drafter_registry.CONTROL.name
PROMPT_LINES = 8  # of a prompt, the last ones are shown
WIDTH = 100  # where the output is not a terminal


class DemoPrompt(NamedTuple):
    """A text to go on from, its name, and its kind: a completion, or an edit of what it holds."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True)
class PromptComparison:
    """One prompt, answered several times with each drafter. Greedy, so each says one text."""

    prompt: DemoPrompt
    control: Sequence[Answer]
    speculative: Sequence[Answer]

    @property
    def difference(self) -> str | None:
        """Where a text differs from the control's first; None where all are the same."""
        wanted = self.control[0].text
        for answer in (*self.control, *self.speculative):
            if answer.text != wanted:
                place = len(os.path.commonprefix([wanted, answer.text]))  # noqa: RUF071  texts, not paths
                here, there = (text[place : place + 20] for text in (wanted, answer.text))
                return (
                    f"{self.prompt.id}: character {place}: {CONTROL} says {here!r}, "
                    f"another answer {there!r}"
                )
        return None


@dataclass(frozen=True)
class ComparisonRow:
    """What one row of the table says. Seconds are medians over the repeats."""

    num_tokens: int
    control_seconds: float
    seconds: float
    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    identical: bool

    @classmethod
    def of(cls, comparison: PromptComparison) -> ComparisonRow:
        answer = comparison.speculative[0]
        return cls(
            num_tokens=answer.num_tokens,
            control_seconds=median(answer.seconds for answer in comparison.control),
            seconds=median(answer.seconds for answer in comparison.speculative),
            **answer.totals._asdict(),
            identical=comparison.difference is None,
        )

    @classmethod
    def total(cls, rows: Sequence[ComparisonRow]) -> ComparisonRow:
        names = [field.name for field in fields(cls) if field.name != "identical"]
        sums: dict[str, Any] = {n: sum(getattr(row, n) for row in rows) for n in names}
        return cls(**sums, identical=all(row.identical for row in rows))

    @property
    def cells(self) -> list[str]:
        drafted = self.num_draft_tokens
        return [
            str(self.num_tokens),
            f"{self.num_tokens / self.control_seconds:.1f}",
            f"{self.num_tokens / self.seconds:.1f}",
            f"{self.control_seconds / self.seconds:.2f}x",
            f"{self.num_accepted_tokens / drafted:.0%}" if drafted else "-",
            f"{self.num_tokens / self.num_rounds:.2f}" if self.num_rounds else "-",
            "yes" if self.identical else "NO",
        ]


def add_options(_: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(_: argparse.Namespace) -> int:
    prompts = read_prompts(PROMPTS)
    planned = deployment.load(EMBEDDED)
    console = console_of_width(WIDTH)
    with serving(planned) as server, Client(server.grpc_url) as client:
        bench = DemoRunner(client, planned.stream_entry.name, console)
        bench.warm_up(prompts)
        comparisons = [
            bench.compare(prompt, f"{number} of {len(prompts)}: {prompt.id}")
            for number, prompt in enumerate(prompts, start=1)
        ]
    return report(comparisons, planned.loop_settings().drafter, console)


def read_prompts(path: Path) -> list[DemoPrompt]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise TandemError(f"{path}: {error.strerror}; the demo wants a checkout") from error
    read = [json.loads(line) for line in lines]
    prompts = [DemoPrompt(entry["id"], entry["kind"], entry["prompt"]) for entry in read]
    kinds = dict.fromkeys(prompt.kind for prompt in prompts)
    of_kinds = ([p for p in prompts if p.kind == kind][:PROMPTS_OF_A_KIND] for kind in kinds)
    return [*chain.from_iterable(of_kinds)]


class DemoRunner:
    """Puts prompts to a server, as it is deployed and without drafts."""

    def __init__(self, client: Client, model: str, console: Console) -> None:
        self._client = client
        self._model = model
        self._console = console

    def warm_up(self, prompts: Sequence[DemoPrompt]) -> None:
        """Let both engines allocate what they need, and `auto` learn what their calls take."""
        for prompt in prompts:
            for drafter in (CONTROL, None):
                self._answer(prompt, drafter)

    def compare(self, prompt: DemoPrompt, heading: str) -> PromptComparison:
        """Show an answer as it streams, then time it: in turns, so that both meet the same noise.

        The timed answers come whole: a stream would make the control pay for a chunk a token.
        """
        self._console.print()
        self._console.rule(Text(heading), align="left", style="dim")
        tail = last_lines(prompt.text, PROMPT_LINES)
        self._console.out(tail, style="dim", end="", highlight=False)
        streamed, inputs = Answer(), inputs_for(prompt.text, MAX_TOKENS, {})
        show(self._client, self._model, inputs, streamed, self._console)
        control, speculative = [], [streamed]
        with Console(stderr=True).status("timing it"):
            for _ in range(REPEATS):
                control.append(self._answer(prompt, CONTROL))
                speculative.append(self._answer(prompt, None))
        return PromptComparison(prompt, control, speculative)

    def _answer(self, prompt: DemoPrompt, drafter: str | None) -> Answer:
        """Ask with a drafter; None: with the deployment's own."""
        more = {} if drafter is None else {tensors.DRAFTER: drafter}
        inputs = inputs_for(prompt.text, MAX_TOKENS, more, stream=False)
        return self._client.answer(self._model, inputs)


def report(comparisons: Sequence[PromptComparison], drafter: str, console: Console) -> int:
    console.print()
    console.print(_table(comparisons, drafter))
    console.print(
        f"Greedy, {MAX_TOKENS} tokens at most; times are medians of {REPEATS} answers.",
        style="dim",
        highlight=False,
    )
    console.print(where_the_time_went(comparisons, drafter), style="dim", highlight=False)
    if coloured(console):
        style = STYLES["accepted"]
        console.print(f"In the texts: [{style}]accepted draft tokens[/], the target's own.")
    differences = [c.difference for c in comparisons if c.difference is not None]
    for difference in differences:
        console.print(f"different: {difference}", style="red", markup=False, highlight=False)
    return int(bool(differences))


def where_the_time_went(comparisons: Sequence[PromptComparison], drafter: str) -> str:
    """Say what a round takes, by the engines' own clocks, and what the engines do not take of it.

    The rest weighs more the faster the engines are: it is why a fast machine gains less here.
    """
    # The first was streamed.
    answers = [a for c in comparisons for a in c.speculative[1:] if a.statistics]
    rounds = sum(answer.totals.num_rounds for answer in answers)
    if not rounds:
        return "No round was drafted."
    whole = 1000 * sum(answer.seconds for answer in answers) / rounds
    target, draft = (
        1000 * sum((answer.statistics or {})[f"{name}_seconds"] for answer in answers) / rounds
        for name in ("target", "draft")
    )
    return (
        f"A round of {drafter} took {whole:.1f} ms: {target:.1f} in the target, {draft:.1f} in "
        f"the draft,\n{max(whole - target - draft, 0):.1f} in Triton and the loop, which matters "
        "less the longer the engines take."
    )


def last_lines(text: str, count: int) -> str:
    """Return the end of a text, marked where lines before it were left out."""
    lines = text.split("\n")
    return text if len(lines) <= count else "\n".join(["...", *lines[-count:]])


def _table(comparisons: Sequence[PromptComparison], drafter: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("prompt")
    for heading in (
        "tokens",
        f"{CONTROL}\ntokens/s",
        f"{drafter}\ntokens/s",
        "speedup",
        "acceptance",
        "tokens\nper round",
        "identical\ntext",
    ):
        table.add_column(heading, justify="right", vertical="bottom")
    rows = [(c.prompt, ComparisonRow.of(c)) for c in comparisons]
    for kind in dict.fromkeys(prompt.kind for prompt, _ in rows):
        of_kind = [(prompt.id, row) for prompt, row in rows if prompt.kind == kind]
        for name, row in of_kind:
            table.add_row(name, *row.cells)
        table.add_section()
        total = ComparisonRow.total([row for _, row in of_kind])
        table.add_row(f"all {kind}s", *total.cells, style="bold")
        table.add_section()
    table.add_row("all", *ComparisonRow.total([row for _, row in rows]).cells, style="bold")
    return table
