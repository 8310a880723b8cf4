"""Options of everything that measures, and the run that they describe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.bls.drafters.registry import DrafterKind, DrafterName
from tandem.bls.settings import AUTO, DRAFT_AHEAD
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.report import Report
from tandem.tools.benchmark.scenario import Scenario, scenarios_of_file
from tandem.tools.benchmark.statistics import statistics_of
from tandem.tools.benchmark.target_server import (
    ServedDrafters,
    TargetServer,
    name_of,
    target_server,
)
from tandem.tools.benchmark.variant import CONTROL, Variant
from tandem.tools.client.client import MODEL, Value
from tandem.tools.client.terminal import console_of_width
from tandem.tools.commands.chosen import add_deployment, planned_of
from tandem.tools.commands.options import (
    PROMPTS,
    Options,
    add_count,
    add_url,
    at_least,
    drafter_names,
    write_json,
)
from tandem.tools.errors import TandemError
from tandem.tools.profiles.deployment import Deployment

WIDTH = 132  # where the output is not a terminal
Item = TypeVar("Item")


def several(read: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """Return a reader of values separated by commas."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def draft_length(text: str) -> int:
    return AUTO if text == "auto" else at_least(1)(text)


def draft_ahead(text: str) -> str:
    if text not in DRAFT_AHEAD:
        raise argparse.ArgumentTypeError(f"'{text}' given, must be {', '.join(DRAFT_AHEAD)}")
    return text


def add_measuring(
    parser: argparse.ArgumentParser, *, max_tokens: int, repetitions: int, streamed: int
) -> Options:
    """Add the options of every measurement with a command's defaults; return the prompts' group."""
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server)
    server.add_argument(
        "--model",
        metavar="NAME",
        help=f"The entry of that server to ask; needs --url (default: {MODEL}).",
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="The prompts: one per line, or JSONL, where each `kind` is a scenario (default: the "
        "demo's).",
    )
    add_count(prompts, "--limit", "The number of prompts of a scenario", 8)
    add_count(prompts, "--max-tokens", "The longest answer, in tokens", max_tokens)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--temperature", type=float, metavar="X", help="The temperature (default: greedy)."
    )
    add_count(
        sampling,
        "--seed",
        "The seed of sampled answers (default: 1; with --use-draft-logits none, because "
        "a text that a seed repeats there is not drafted ahead).",
        least=0,
    )
    sampling.add_argument(
        "--use-draft-logits",
        action="store_true",
        help="Accept draft tokens by probability instead of comparing ids.",
    )
    measuring = parser.add_argument_group("measurement")
    add_count(
        measuring,
        "--repetitions",
        "The number of answers to each prompt; the spread is over them",
        repetitions,
    )
    add_count(
        measuring,
        "--streamed",
        "The number of further repetitions, as streams, for the latencies",
        streamed,
        least=0,
    )
    parser.add_argument_group("output").add_argument(
        "--json", type=Path, metavar="FILE", help="The file to write all statistics to."
    )
    return prompts


def add_variants(
    parser: argparse.ArgumentParser, *, drafters: str, lengths: str, ngrams: Sequence[int | None]
) -> Options:
    """Add the options for the drafters and the draft lengths; return their group.

    drafters, lengths: the command's defaults, in words.
    """
    group = parser.add_argument_group("what to compare")
    group.add_argument(
        "--drafter",
        type=several(str),
        default=(),
        metavar="NAME,NAME",
        help=f"The drafters: {drafter_names()} (default: {drafters}).",
    )
    group.add_argument(
        "--num-draft-tokens",
        type=several(draft_length),
        metavar="N,N",
        help=f"The draft lengths, in tokens or auto (default: {lengths}).",
    )
    sizes = ",".join("as served" if size is None else str(size) for size in ngrams)
    group.add_argument(
        "--max-matching-ngram-size",
        type=several(at_least(1)),
        default=ngrams,
        metavar="N,N",
        help=f"The longest n-grams that prompt lookup searches for (default: {sizes}).",
    )
    return group


def chosen_target(options: argparse.Namespace) -> Deployment | TargetServer:
    """Return a deployment to serve, or a running server; raise TandemError if --json can't work."""
    path = options.json
    if path is not None and not path.absolute().parent.is_dir():
        raise TandemError(f"cannot write {path}: no folder {path.absolute().parent}")
    return planned_of(options) or TargetServer(options.url, options.model or MODEL)


def drafters_of(served: ServedDrafters, given: Sequence[DrafterName]) -> Sequence[DrafterKind]:
    """Return the rows of the given drafters, or all that can be measured, the default first.

    Raises TandemError for one that the server does not have, and where there is no control.
    """
    if CONTROL.drafter not in served.kinds:
        raise TandemError("the target drafts by itself, so no request can have the control")
    names = dict.fromkeys((served.default, *served.kinds))
    own = [served.kinds[name] for name in names if served.kinds[name].drafts_in_loop]
    if not own:
        raise TandemError(f"{served.server} has no drafter that could be measured")
    for name in given:
        check_drafter(served, name)
    return [served.kinds[name] for name in given] or own


def check_drafter(served: ServedDrafters, name: DrafterName) -> None:
    if name not in served.kinds:
        raise TandemError(
            f"--drafter {name}: {served.server} does not have it; it has {', '.join(served.kinds)}"
        )


def lengths_of(
    served: ServedDrafters, given: Sequence[int | None] | None, usual: Sequence[int | None]
) -> Sequence[int | None]:
    """Return the draft lengths to measure: the given ones, else the usual ones that are verified.

    Raises TandemError for drafts that the target does not verify.
    """
    most = served.max_draft_len
    over = [length for length in given or () if length and length > most]
    if over:
        raise TandemError(
            f"--num-draft-tokens {over[0]}: {served.server} verifies {most} draft tokens per "
            f"round; say {most} or less"
        )
    return given or [length for length in usual if not length or length <= most]


def prompts_file(given: Path | None) -> Path:
    if given is not None and not given.is_file():
        raise TandemError(f"--prompts {given}: no such file")
    if not (given or PROMPTS).is_file():
        raise TandemError(f"no prompts in {PROMPTS}; say --prompts FILE")
    return given or PROMPTS


def prompts_of(options: argparse.Namespace) -> list[Scenario]:
    return scenarios_of_file(prompts_file(options.prompts), options.limit)


def measure(
    options: argparse.Namespace,
    target: Deployment | TargetServer,
    scenarios: Sequence[Scenario],
    variants: Sequence[Variant],
    nums_streams: Sequence[int],
) -> Report:
    more: dict[Tensor, Value] = {}
    if options.temperature is not None:
        # A temperature of 1 alone asks for no sampling: NVIDIA's clients send it always.
        more = {tensors.TEMPERATURE: options.temperature, tensors.TOP_P: 1.0}
        if options.seed is not None or not options.use_draft_logits:
            more[tensors.SEED] = 1 if options.seed is None else options.seed
    with target_server(target) as server:
        streamed = options.streamed
        if streamed and not server.streams:
            print(
                f"tandem: '{server.entry}' does not stream: no latencies of chunks", file=sys.stderr
            )
            streamed = 0
        plan = LoadPlan(
            scenarios=scenarios,
            variants=variants,
            nums_streams=nums_streams,
            max_tokens=options.max_tokens,
            repetitions=options.repetitions,
            streamed=streamed,
            more=more,
        )
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress:
            task = progress.add_task("", total=plan.num_answers)

            def answered(variant: Variant) -> None:
                progress.update(task, advance=1, description=str(variant))

            with LoadGenerator(server.url, server.entry, plan, answered) as asker:
                cells = asker.cells()
    settings = {
        "prompts": {scenario.name: len(scenario.prompts) for scenario in scenarios},
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "streamed": plan.streamed,
        "inputs": {str(tensor): value for tensor, value in more.items()},
    }
    return Report(name_of(target), settings, statistics_of(cells))


def show(options: argparse.Namespace, report: Report) -> None:
    console = console_of_width(WIDTH)
    for table in report.tables():
        console.print(table, highlight=False)
        console.print()
    lossless = options.temperature is None or not options.use_draft_logits
    for line in report.differences() if lossless else []:
        console.print(f"different: {line}", style="red", markup=False, highlight=False)
    if options.json:
        write_json(options.json, report.as_json())
