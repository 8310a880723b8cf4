"""Measure the speedup of drafters and draft lengths on a live server.

Requests alternate with drafter 'none', the baseline.

    tandem bench
    tandem bench --url 127.0.0.1:8001 --num-draft-tokens 2,4,8,auto
    tandem bench --profile emulated-70b-1b --concurrency 1,16 --json results.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.bls.settings import DRAFT_AHEAD
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.benchmark.load_generator import (
    LoadGenerator,
    LoadPlan,
    MeasuredServer,
    measured_server,
)
from tandem.tools.benchmark.report import LEGEND, Report
from tandem.tools.benchmark.variant import (
    Variant,
    make_variants,
    scenarios_of_file,
    scenarios_of_lengths,
)
from tandem.tools.client.client import MODEL, Client, Value
from tandem.tools.client.terminal import table_console
from tandem.tools.commands.options import (
    add_count,
    add_deployment,
    add_prompts,
    add_url,
    at_least,
    deployment_to_serve,
    draft_length,
    drafter_names,
    finite_number,
    output_file,
    prompts_file,
    write_json,
)
from tandem.tools.errors import TandemError, UsageError

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    add_deployment(server)
    add_url(server)
    server.add_argument(
        "--model",
        metavar="NAME",
        help=f"Entry to call; needs --url (default: {MODEL}).",
    )
    prompts = parser.add_argument_group("prompts")
    add_prompts(prompts, "one per line, or JSONL with one scenario per `kind`")
    add_count(prompts, "--limit", "Prompts per scenario", 8)
    add_count(prompts, "--max-tokens", "Maximum output tokens", 128)
    prompts.add_argument(
        "--input-tokens",
        type=comma_separated(at_least(1)),
        default=(),
        metavar="N,N",
        help="Use random prompts with these token counts, one scenario each.",
    )
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--temperature", type=finite_number, metavar="X", help="Temperature (default: greedy)."
    )
    sampling.add_argument(
        "--use-draft-logits",
        action="store_true",
        help="Accept draft tokens by probability instead of comparing ids.",
    )
    measurement = parser.add_argument_group("measurement")
    add_count(measurement, "--repetitions", "Measured requests per prompt", 5)
    add_count(
        measurement,
        "--streamed",
        "Streamed requests per prompt, to measure latency",
        1,
        minimum=0,
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", type=output_file, metavar="FILE", help="Write all statistics to this JSON file."
    )
    output.add_argument(
        "--costs", action="store_true", help="Show what draft length auto has measured."
    )
    variants = parser.add_argument_group("what to compare")
    variants.add_argument(
        "--drafter",
        type=comma_separated(str),
        default=(),
        metavar="NAME,NAME",
        help=f"Drafters: {drafter_names()} (default: the profile's own).",
    )
    variants.add_argument(
        "--num-draft-tokens",
        type=comma_separated(draft_length),
        default=(None,),
        metavar="N,N",
        help="Draft lengths, in tokens or auto (default: as served).",
    )
    variants.add_argument(
        "--draft-ahead",
        type=comma_separated(draft_ahead),
        default=(None,),
        metavar="NAME,NAME",
        help="Draft the next round while the target verifies: "
        f"{', '.join(DRAFT_AHEAD)} (default: as served).",
    )
    parser.add_argument_group("load").add_argument(
        "--concurrency",
        type=comma_separated(at_least(1)),
        default=(1,),
        metavar="N,N",
        help="Concurrent requests (default: 1).",
    )


def comma_separated(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return an argparse type that reads comma-separated values."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def draft_ahead(text: str) -> str:
    if text not in DRAFT_AHEAD:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(DRAFT_AHEAD)}; got {text!r}")
    return text


def run(options: argparse.Namespace) -> int:
    if options.model and not options.url:
        raise UsageError("--model needs --url; set both")
    server = measured_server(deployment_to_serve(options), options.url, options.model)
    variants = chosen_variants(server, options)
    if options.input_tokens and max(options.input_tokens) >= server.context:
        raise TandemError(
            f"--input-tokens must be less than {server.context}, the context of "
            f"{server.name}; got {max(options.input_tokens)}"
        )
    scenarios = scenarios_of_lengths(options.input_tokens, options.limit)
    if options.prompts or not scenarios:
        scenarios += scenarios_of_file(prompts_file(options.prompts), options.limit)
    more: dict[Tensor, Value] = {}
    if options.temperature is not None:
        # A temperature of 1 alone doesn't turn on sampling, because NVIDIA's clients always send
        # it. So top_p is set too.
        more = {tensors.TEMPERATURE: options.temperature, tensors.TOP_P: 1.0}
        if not options.use_draft_logits:
            more[tensors.SEED] = 1  # so that the outputs can be compared with the baseline's
    plan = LoadPlan(
        scenarios=scenarios,
        variants=variants,
        concurrencies=sorted(set(options.concurrency)),
        max_tokens=options.max_tokens,
        repetitions=options.repetitions,
        streamed=options.streamed,
        more=more,
    )
    report = measure(server, plan)
    if options.json:  # before the tables, because standard output may be full or closed
        write_json(options.json, report.as_json())
    console = table_console()
    for table in report.tables() + report.costs() * options.costs:
        console.print(table, highlight=False)
        console.print()
    console.print(LEGEND, highlight=False)
    # Acceptance by probability keeps only the distribution of sampled outputs.
    exact = options.temperature is None or not options.use_draft_logits
    differences = report.differences() if exact else []
    for line in differences:
        console.print(f"different: {line}", style="red", markup=False, highlight=False)
    return 1 if differences else 0


def chosen_variants(server: MeasuredServer, options: argparse.Namespace) -> list[Variant]:
    """Return the baseline and the variants that the options select.

    Raises TandemError if the server can't run one of them.
    """
    server.check_baseline()
    for name in options.drafter:
        server.check_drafter(name)
    drafting = [name for name, kind in server.drafters.items() if kind.drafts_in_loop]
    drafting.sort(key=lambda name: name != server.default_drafter)
    if not drafting:
        raise TandemError(f"{server.name} has no drafter to measure")
    limit = server.max_draft_len
    for length in options.num_draft_tokens:
        if length and length > limit:
            raise TandemError(
                f"--num-draft-tokens must be at most {limit}, the maximum of {server.name}; "
                f"got {length}"
            )
    return make_variants(
        [server.drafters[name] for name in options.drafter or drafting[:1]],
        options.num_draft_tokens,
        options.draft_ahead,
        use_draft_logits=options.use_draft_logits,
    )


def measure(server: MeasuredServer, plan: LoadPlan) -> Report:
    with server.running() as url:
        with Client(url) as client:
            if plan.streamed and not client.entry(server.entry).streams:
                print(f"tandem: no latencies: '{server.entry}' doesn't stream", file=sys.stderr)
                plan = replace(plan, streamed=0)
        total = plan.num_answers
        console = Console(stderr=True)
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task("", total=total)
            lines = count(1)

            def on_answer(variant: Variant) -> None:
                progress.update(task, advance=1, description=str(variant))
                done = next(lines)
                if not console.is_terminal and 10 * done // total != 10 * (done - 1) // total:
                    print(f"tandem: {done} of {total} requests", file=sys.stderr, flush=True)

            with LoadGenerator(url, server.entry, plan, on_answer) as generator:
                measurements = generator.measurements()
    settings = {
        "prompts": {scenario.name: len(scenario.prompts) for scenario in plan.scenarios},
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "streamed": plan.streamed,
        "inputs": {str(tensor): value for tensor, value in plan.more.items()},
    }
    name, planned = server.name, server.deployment
    if planned and planned.target.parameters.get("engine") == "emulated":
        name += " (emulated engines)"
    return Report(name, settings, measurements)
