"""`tandem demo`: answer the same prompts with and without speculation."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tandem.bls.drafters import registry as drafter_registry
from tandem.contract import entry as tensors
from tandem.tools.client import dataset
from tandem.tools.client.client import Answer, Answers, Client, inputs_for
from tandem.tools.client.dataset import DatasetPrompt
from tandem.tools.client.terminal import STYLES, coloured, console_of_width, show
from tandem.tools.commands.options import EMBEDDED, PROMPTS
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROMPTS_OF_A_KIND = 4
MAX_TOKENS = 96
REPEATS = 3
CONTROL = drafter_registry.CONTROL.name
PROMPT_LINES = 8  # the maximum number of lines to show, from the end of a prompt
WIDTH = 100  # if the output is not a terminal


@dataclass(frozen=True)
class PromptComparison:
    """Greedy answers to one prompt: repeated with the baseline and with the drafter."""

    prompt: DatasetPrompt
    control: Sequence[Answer]
    speculative: Sequence[Answer]

    @property
    def difference(self) -> str | None:
        """Describe the first difference from the first baseline answer; None if all are equal."""
        wanted = self.control[0].text
        for answer in (*self.control, *self.speculative):
            if answer.text != wanted:
                place = len(os.path.commonprefix([wanted, answer.text]))  # noqa: RUF071  texts, not paths
                here, there = (text[place : place + 20] for text in (wanted, answer.text))
                return (
                    f"{self.prompt.id}: outputs differ at character {place}: {CONTROL} has "
                    f"{here!r}, another drafter {there!r}"
                )
        return None


def cells(comparisons: Sequence[PromptComparison]) -> list[str]:
    """Return the cells of a table row, for one prompt or for several prompts together."""
    answers = Answers([comparison.speculative[0] for comparison in comparisons])
    control_seconds, seconds = (
        sum(median(answer.seconds for answer in repeats) for repeats in column)
        for column in (
            [comparison.control for comparison in comparisons],
            [comparison.speculative for comparison in comparisons],
        )
    )
    acceptance, per_round = answers.acceptance_rate, answers.tokens_per_round
    identical = all(comparison.difference is None for comparison in comparisons)
    return [
        str(answers.num_tokens),
        f"{answers.num_tokens / control_seconds:.1f}",
        f"{answers.num_tokens / seconds:.1f}",
        f"{control_seconds / seconds:.2f}x",
        "-" if acceptance is None else f"{acceptance:.0%}",
        "-" if per_round is None else f"{per_round:.2f}",
        "yes" if identical else "NO",
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


def read_prompts(path: Path) -> list[DatasetPrompt]:
    """Return the first ``PROMPTS_OF_A_KIND`` prompts of each kind."""
    prompts = dataset.read_prompts(path)
    kinds = dict.fromkeys(prompt.kind for prompt in prompts)
    of_kinds = ([p for p in prompts if p.kind == kind][:PROMPTS_OF_A_KIND] for kind in kinds)
    return [*chain.from_iterable(of_kinds)]


class DemoRunner:
    """Sends prompts to a server, with the deployment's default drafter and with the baseline."""

    def __init__(self, client: Client, model: str, console: Console) -> None:
        self._client = client
        self._model = model
        self._console = console

    def warm_up(self, prompts: Sequence[DatasetPrompt]) -> None:
        """Make both engines allocate their memory, and let ``draft_len: auto`` learn call times."""
        for prompt in prompts:
            for drafter in (CONTROL, None):
                self._answer(prompt, drafter)

    def compare(self, prompt: DatasetPrompt, heading: str) -> PromptComparison:
        """Show a streamed answer, then time the baseline and the drafter.

        The baseline and the drafter alternate, so that noise affects both equally.
        """
        self._console.print()
        self._console.rule(Text(heading), align="left", style="dim")
        tail = last_lines(prompt.text, PROMPT_LINES)
        self._console.out(tail, style="dim", end="", highlight=False)
        streamed, inputs = Answer(), inputs_for(prompt.text, MAX_TOKENS, {})
        show(self._client, self._model, inputs, streamed, self._console)
        control, speculative = [], [streamed]
        with Console(stderr=True).status("measuring"):
            for _ in range(REPEATS):
                control.append(self._answer(prompt, CONTROL))
                speculative.append(self._answer(prompt, None))
        return PromptComparison(prompt, control, speculative)

    def _answer(self, prompt: DatasetPrompt, drafter: str | None) -> Answer:
        """Send a prompt. drafter: None selects the deployment's default."""
        more = {} if drafter is None else {tensors.DRAFTER: drafter}
        inputs = inputs_for(prompt.text, MAX_TOKENS, more, stream=False)
        return self._client.answer(self._model, inputs)


def report(comparisons: Sequence[PromptComparison], drafter: str, console: Console) -> int:
    console.print()
    console.print(_table(comparisons, drafter))
    console.print(
        f"Greedy, up to {MAX_TOKENS} tokens; times are medians of {REPEATS} requests.",
        style="dim",
        highlight=False,
    )
    console.print(where_the_time_went(comparisons, drafter), style="dim", highlight=False)
    if coloured(console):
        style = STYLES["accepted"]
        console.print(f"Colors: [{style}]accepted draft tokens[/], the target's own tokens.")
    differences = [c.difference for c in comparisons if c.difference is not None]
    for difference in differences:
        console.print(f"different: {difference}", style="red", markup=False, highlight=False)
    return int(bool(differences))


def where_the_time_went(comparisons: Sequence[PromptComparison], drafter: str) -> str:
    """Describe how long a round takes, and how much of that the engines report.

    The rest is overhead. Its share grows if the engines are fast, so a fast machine gains less.
    """
    # The first answer was streamed, so it isn't timed.
    answers = [a for c in comparisons for a in c.speculative[1:] if a.statistics]
    rounds = sum(answer.totals.num_rounds for answer in answers)
    if not rounds:
        return "No round had draft tokens."
    whole = 1000 * sum(answer.seconds for answer in answers) / rounds
    target, draft = (
        1000 * sum((answer.statistics or {})[f"{name}_seconds"] for answer in answers) / rounds
        for name in ("target", "draft")
    )
    return (
        f"A round with {drafter} took {whole:.1f} ms: {target:.1f} in the target, {draft:.1f} in "
        f"the draft,\nand {max(whole - target - draft, 0):.1f} in Triton and the loop, which "
        "matters less with larger engines."
    )


def last_lines(text: str, count: int) -> str:
    """Return the last ``count`` lines of a text, after a line "..." if there are more."""
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
    for kind in dict.fromkeys(comparison.prompt.kind for comparison in comparisons):
        of_kind = [c for c in comparisons if c.prompt.kind == kind]
        for comparison in of_kind:
            table.add_row(comparison.prompt.id, *cells([comparison]))
        table.add_section()
        table.add_row(f"all {kind}s", *cells(of_kind), style="bold")
        table.add_section()
    table.add_row("all", *cells(comparisons), style="bold")
    return table
