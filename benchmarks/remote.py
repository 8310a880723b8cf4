"""Measure what a draft engine on another machine costs per round.

    python -m benchmarks.remote

Both engines of the profile are emulated. The draft runs in a server of its own, behind a proxy that
delays all bytes by a fixed time in each direction. Each number of streams is measured with a local
draft, then with the remote draft at each delay, with and without drafting ahead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console

from benchmarks.proxy import Proxy
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.variant import Variant, scenarios_of_lengths
from tandem.tools.commands.bench import comma_separated
from tandem.tools.commands.options import PROFILES
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.server import serving

PROFILE = PROFILES / "emulated-70b-1b.yaml"
PROMPT_TOKENS = 64
HEADINGS = ("draft", "streams", "ahead", "ms per round", "added", "tokens/s", "of local")
MS = 1e3


class Cell(NamedTuple):
    """One measurement. ms: per round of a sequence, median of all answers. rate: tokens/s."""

    ms: float
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--delays", type=comma_separated(float), default=(0.1, 1.0, 5.0), help="ms")
    parser.add_argument("--streams", type=comma_separated(int), default=(1, 16, 64))
    parser.add_argument("--draft-len", type=int, default=10, help="draft tokens per round")
    parser.add_argument("--max-tokens", type=int, default=120, help="of each answer")
    options = parser.parse_args()
    variants = [
        Variant("draft_model", options.draft_len, draft_ahead=ahead) for ahead in ("false", "true")
    ]
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        profile = yaml.safe_load(PROFILE.read_text())
        for engine in profile["engines"].values():
            engine["tokenizer"] = str((PROFILE.parent / engine["tokenizer"]).resolve())
        admission = {"max_requests": max(options.streams), "max_queue": max(options.streams)}
        pool = _deployment(folder, "pool", engines=profile["engines"], admission=admission)
        served = stack.enter_context(serving(pool))
        proxy = stack.enter_context(Proxy(served.grpc_url))
        local = _deployment(folder, "local", **profile, admission=admission)
        # As the only engine of its server, the emulated draft would be a target, and always right.
        draft = {"kind": "remote", "url": proxy.url, "model": "draft"}
        engines = profile["engines"] | {"draft": draft}
        remote = _deployment(
            folder, "remote", **profile | {"engines": engines}, admission=admission
        )
        found: dict[tuple[str, int, Variant], Cell] = {}
        with serving(local) as server:
            for streams in options.streams:
                for variant, cell in _measure(server.grpc_url, local, streams, variants, options):
                    found["local", streams, variant] = cell
                    console.print(_row("local", streams, variant, cell, cell))
        with serving(remote) as server:
            for delay, streams in product(options.delays, options.streams):
                proxy.delay = delay / MS
                for variant, cell in _measure(server.grpc_url, remote, streams, variants, options):
                    base = found["local", streams, variant]
                    console.print(_row(f"{delay:g} ms away", streams, variant, cell, base))


def _deployment(folder: Path, file: str, **profile: object) -> Deployment:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump({"name": file} | profile))
    return deployment.load(path)


def _measure(
    url: str,
    planned: Deployment,
    streams: int,
    variants: Sequence[Variant],
    options: argparse.Namespace,
) -> Iterator[tuple[Variant, Cell]]:
    """Measure each variant in two repetitions after one to warm up."""
    each = 3 if streams == 1 else 1  # prompts of each stream
    plan = LoadPlan(
        scenarios=[scenarios_of_lengths([PROMPT_TOKENS], streams * each)[0]],
        variants=variants,
        concurrencies=[streams],
        max_tokens=options.max_tokens,
        repetitions=3,
        streamed=0,
        more={},
        prompts_each=each,
    )
    with LoadGenerator(url, planned.stream_entry.name, plan) as load:
        measurements = load.measurements()
    for measurement in measurements:
        runs = measurement.whole[1:]
        figures = [answer.statistics for run in runs for answer in run.answers if answer.statistics]
        ms = statistics.median(MS * f["decoding_seconds"] / f["num_rounds"] for f in figures)
        rate = statistics.median(run.num_tokens * streams / run.seconds for run in runs)
        yield measurement.variant, Cell(ms, rate)


def _row(draft: str, streams: int, variant: Variant, cell: Cell, base: Cell) -> str:
    """Return a row of the table. base: the same cell with a local draft."""
    row = (
        *(draft, str(streams), "on" if variant.draft_ahead == "true" else "off"),
        *(f"{cell.ms:.1f}", f"{cell.ms - base.ms:+.1f}"),
        *(f"{cell.rate:.0f}", f"{cell.rate / base.rate:.2f}"),
    )
    return f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
