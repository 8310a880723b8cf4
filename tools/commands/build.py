"""`tandem build`: make the TensorRT engines that a profile names."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.table import Table

from tandem.tools.commands.options import add_profile, chosen_profile
from tandem.tools.errors import TandemError
from tandem.tools.findings import Finding
from tandem.tools.profiles import deployment
from tandem.tools.profiles.machine import free_memory
from tandem.tools.trtllm import memory, preflight
from tandem.tools.trtllm.engines import engines_to_plan, trt_engines, with_checkpoints
from tandem.tools.trtllm.steps import EXAMPLES, BuildStep, engine_steps, script

MARKS = {True: "[green]ok[/]", False: "[red]missing[/]", None: "[yellow]note[/]"}
LAST_LINES = 20
TAIL_BYTES = 16384
POLL_SECONDS = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to build")
    add_profile(group)
    group.add_argument(
        "--dry-run", action="store_true", help="Print the commands as a script; build nothing."
    )
    group.add_argument(
        "--examples",
        type=Path,
        metavar="DIR",
        default=EXAMPLES,
        help="The folder of TensorRT-LLM's examples, for quantize.py (default: %(default)s).",
    )


def run(options: argparse.Namespace) -> int:
    path = chosen_profile(options)
    profile, engines = engines_to_plan(path)
    if not engines:
        raise TandemError(f"{path}: nothing to build; no engine is of kind 'tensorrtllm'")
    here = with_checkpoints(engines)
    if here == engines or not options.dry_run:
        engines = here = trt_engines(deployment.load(path).profile)
    steps = tuple(
        step for name, e in engines.items() for step in engine_steps(name, e, options.examples)
    )
    seen = preflight.seen_gpus()
    findings = [
        *preflight.examine_checkpoints(engines),
        *preflight.examine(here, seen),
        *preflight.examine_steps(engines, profile.admission.max_requests),
        *preflight.examine_quantizing(
            here, seen, None if options.dry_run else free_memory() / memory.GIB
        ),
    ]
    if not options.dry_run:
        findings += preflight.examine_tools(engines, steps, seen)
    _print(memory.rows(preflight.memory_of(here, seen)), findings)
    if options.dry_run:
        print(script(steps), end="")
    bad = sum(finding.good is False for finding in findings)
    if bad:
        raise TandemError(f"{path}: {bad} of {len(findings)} checks failed; nothing was built")
    if not options.dry_run:
        build(steps)
    return 0


def build(steps: Sequence[BuildStep]) -> None:
    """Run the steps whose output is not up to date; raise TandemError where one fails."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for number, step in enumerate(steps, 1):
        title = f"{number} of {len(steps)}, {step.name}"
        if step.is_fresh:
            console.print(f"{title}: up to date ({step.output})")
            continue
        began = time.monotonic()
        with console.status(title) as status:
            _run(step, title, status)
        console.print(f"{title}: {time.monotonic() - began:.0f} s")


def _run(step: BuildStep, title: str, status: Status) -> None:
    """Run one step, its output into its log; on failure print the last lines and raise."""
    step.output.mkdir(parents=True, exist_ok=True)
    step.stamp.unlink(missing_ok=True)
    with step.log.open("wb") as log:
        try:
            process = subprocess.Popen(step.argv, stdout=log, stderr=subprocess.STDOUT)
        except OSError as error:
            raise TandemError(f"{step.name}: {step.argv[0]}: {error.strerror}") from error
        with process:
            try:
                while process.poll() is None:
                    status.update(f"{title}: {''.join(_tail(step.log, 1)).strip()}")
                    time.sleep(POLL_SECONDS)
            except BaseException:
                process.terminate()
                raise
    if process.returncode:
        print("".join(_tail(step.log, LAST_LINES)), file=sys.stderr)
        raise TandemError(f"{step.name} failed with status {process.returncode}; log: {step.log}")
    step.stamp.write_text(step.digest())


def _tail(log: Path, lines: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        return file.read().decode(errors="replace").splitlines(keepends=True)[-lines:]


def _print(sizes: Sequence[tuple[str, ...]], findings: Sequence[Finding]) -> None:
    """Print the memory's table and a line a check on stderr: stdout is for the script."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    table = Table("GPU", "engine", "weights", "KV cache", "all", "has (GiB)", box=None)
    for row in sizes:
        table.add_row(*row)
    console.print(table)
    for finding in findings:
        fix = "" if finding.good else f"; {finding.fix}"
        line = f"{MARKS[finding.good]} {finding.subject}: {finding.found}{fix}"
        console.print(line)
