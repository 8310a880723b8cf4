"""Compare `draft_len: auto` with no drafts and with fixed lengths, cell by cell.

    python -m benchmarks.auto
    python -m benchmarks.auto --text edits --drafter hybrid --at-once 1,16
    python -m benchmarks.auto --text two-state --at-once 64 --batch-slope 0,0.03
    python -m benchmarks.auto --text 70b-1b --at-once 16 --draft-ahead auto,true,false --slower 4

A cell is a text, a number of concurrent requests, and a batch slope: how much each concurrent call
slows down a step of the emulated engines. The variants alternate in turns, and the printed ratio is
the median over the turns. Each turn compares `auto` with the variant that was best in the other
turns, because noise would favor the best variant of the same turn.

With --slower, the emulated engines take longer, so the overhead of the machine weighs less.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from tandem.bls.settings import AUTO
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.report import Spread
from tandem.tools.benchmark.variant import (
    BASELINE,
    Scenario,
    Variant,
    scenarios_of_file,
    scenarios_of_lengths,
)
from tandem.tools.commands.bench import comma_separated
from tandem.tools.commands.options import PROFILES, PROMPTS
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.profiles.engines.emulated import EmulatedDraft, EmulatedTarget
from tandem.tools.profiles.profile import Profile, read_profile
from tandem.tools.triton.server import serving

HERE = Path(__file__).resolve().parent
PROMPT_TOKENS = 64
TURNS_WARMING_UP = 1
HEADINGS = (
    *("text", "at once", "slope", "none tok/s", "best fixed", "of none"),
    *("auto", "of none", "auto / best", "10-90%"),
)


class ProfileText(NamedTuple):
    """A text to decode.

    profile: path of its profile. kind: kind of prompts in the demo's file (None: emulated engines).
    lengths: fixed draft lengths to compare with.
    """

    profile: Path
    kind: str | None = None
    lengths: tuple[int, ...] = (4, 6, 8, 10, 16)


TEXTS = {
    "completions": ProfileText(PROFILES / "embedded.yaml", "completion", (1, 2, 4, 6, 8)),
    "edits": ProfileText(PROFILES / "embedded.yaml", "edit", (1, 2, 4, 6, 8)),
    "70b-1b": ProfileText(PROFILES / "emulated-70b-1b.yaml"),
    "70b-8b": ProfileText(PROFILES / "emulated-70b-8b.yaml"),
    "405b-3b": ProfileText(PROFILES / "emulated-405b-3b.yaml"),
    "two-state": ProfileText(PROFILES / "emulated-70b-1b-two-state.yaml"),
    "wrong": ProfileText(HERE / "wrong-drafter.yaml", lengths=(2, 4, 10)),
    "right": ProfileText(HERE / "right-drafter.yaml", lengths=(10, 16, 32)),
}


class CellRates(NamedTuple):
    """Measurements of one cell. rates: tokens per second of every variant, turn by turn."""

    text: str
    at_once: int
    batch_slope: float
    rates: dict[Variant, list[float]]

    @property
    def rivals(self) -> dict[Variant, list[float]]:
        """All variants except `auto`."""
        return {variant: r for variant, r in self.rates.items() if variant.draft_len != AUTO}

    @property
    def best(self) -> Variant:
        """The fastest of the baseline and the fixed lengths."""
        return self._best(slice(None))

    def _best(self, *turns: slice) -> Variant:
        def rate(variant: Variant) -> float:
            return statistics.median(r for turn in turns for r in self.rivals[variant][turn])

        return max(self.rivals, key=rate)

    def over_best(self, one: Variant) -> Spread:
        """Compare each turn of a variant with the rival that was best in the other turns."""
        rates = self.rates[one]
        if len(rates) == 1:
            return self.over(one, self.best)
        rivals = [self._best(slice(i), slice(i + 1, None)) for i in range(len(rates))]
        return _spread(rates[i] / self.rates[rival][i] for i, rival in enumerate(rivals))

    def over(self, one: Variant, other: Variant) -> Spread:
        """Compare two variants turn by turn."""
        pairs = zip(self.rates[one], self.rates[other], strict=True)
        return _spread(ours / theirs for ours, theirs in pairs)


def _spread(ratios: Iterable[float]) -> Spread:
    spread = Spread.of(ratios)
    assert spread is not None
    return spread


def main() -> None:
    """Measure the selected cells, and print each as a row of a Markdown table."""
    options = _options()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    for outcome in _outcomes(options):
        for row in _rows(outcome):
            console.print(f"| {' | '.join(row)} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=comma_separated(str), default=tuple(TEXTS), help=", ".join(TEXTS)
    )
    parser.add_argument(
        "--at-once",
        type=comma_separated(int),
        default=(1, 16, 64),
        help="concurrent requests (default: 1,16,64)",
    )
    parser.add_argument(
        "--batch-slope",
        type=comma_separated(float),
        default=(0.0, 0.01, 0.03),
        help="by which each other call makes a step longer (default: 0,0.01,0.03)",
    )
    parser.add_argument(
        "--drafter",
        type=comma_separated(str),
        default=("draft_model",),
        help="draft_model or hybrid, or both (default: draft_model)",
    )
    parser.add_argument("--lengths", type=comma_separated(int), help="instead of each text's own")
    parser.add_argument(
        "--draft-ahead",
        type=comma_separated(str),
        default=(None,),
        help="auto, true or false, or several: each with every length (default: as served)",
    )
    parser.add_argument(
        "--slower", type=float, default=1.0, help="times as long, emulated engines' steps"
    )
    parser.add_argument("--prompts", type=int, default=2, help="of each request at once, a turn")
    parser.add_argument("--max-tokens", type=int, default=160, help="of each answer")
    parser.add_argument("--turns", type=int, default=3, help="of all variants")
    options = parser.parse_args()
    if unknown := [name for name in options.text if name not in TEXTS]:
        parser.error(f"text '{unknown[0]}' isn't known; choose one of: {', '.join(TEXTS)}")
    return options


def slowed(profile: Profile, *, times: float = 1.0, batch_slope: float | None = None) -> Profile:
    """Return a profile with slower emulated engines. Real engines are unchanged.

    times: factor for each step's duration, which gives overhead less weight, as on a faster
    machine. batch_slope: relative slowdown of a step per concurrent call (None: the profile's).
    """
    changed = {}
    for name, engine in profile.engines:
        if isinstance(engine, EmulatedDraft):
            figures = {
                "step_ms": engine.step_ms * times,
                "prefill_ms_per_token": engine.prefill_ms_per_token * times,
                "batch_slope": engine.batch_slope if batch_slope is None else batch_slope,
            }
            changed[name] = engine.model_copy(update=figures)
    return profile.model_copy(update={"engines": profile.engines.model_copy(update=changed)})


def _outcomes(options: argparse.Namespace) -> Iterator[CellRates]:
    for name in options.text:
        text = TEXTS[name]
        profile = read_profile(text.profile)
        emulated = isinstance(profile.engines.target, EmulatedTarget)
        lengths = (*(options.lengths or text.lengths), AUTO)
        drafting = product(options.drafter, lengths, options.draft_ahead)
        variants = [BASELINE, *(Variant(drafter, n, draft_ahead=a) for drafter, n, a in drafting)]
        for slope in options.batch_slope if emulated else (0.0,):
            slower = slowed(profile, times=options.slower, batch_slope=slope)
            yield from _measured(name, deployment.check(slower), variants, slope, options)


def _measured(
    name: str,
    planned: Deployment,
    variants: Sequence[Variant],
    slope: float,
    options: argparse.Namespace,
) -> Iterator[CellRates]:
    """Measure the cells of one server, one cell per number of concurrent requests.

    A variant's rate is the total tokens per second while all streams decode. The rate over the
    elapsed time would depend on the longest answers, because few streams are left at the end.
    """
    with serving(planned) as server:
        for at_once in options.at_once:
            plan = LoadPlan(
                scenarios=[_scenario(TEXTS[name], at_once, options.prompts)],
                variants=variants,
                concurrencies=[at_once],
                max_tokens=options.max_tokens,
                repetitions=TURNS_WARMING_UP + options.turns,
                streamed=0,
                more={},
                prompts_each=options.prompts,
            )
            with LoadGenerator(server.grpc_url, planned.stream_entry.name, plan) as load:
                measurements = load.measurements()
            rates = {
                measurement.variant: [
                    answers.num_tokens * at_once / answers.seconds
                    for answers in measurement.whole[TURNS_WARMING_UP:]
                ]
                for measurement in measurements
            }
            yield CellRates(name, at_once, slope, rates)


def _scenario(text: ProfileText, at_once: int, num_each: int) -> Scenario:
    """Return the prompts of a turn: ``num_each`` per concurrent request, if there are as many.

    With only a few texts, one fixed choice could fit best by chance.
    """
    if text.kind is None:
        return scenarios_of_lengths([PROMPT_TOKENS], at_once * num_each)[0]
    found = {scenario.name: scenario for scenario in scenarios_of_file(PROMPTS, at_once * num_each)}
    return found[text.kind]


def _rows(outcome: CellRates) -> Iterator[tuple[str, ...]]:
    best = outcome.best
    for auto in (variant for variant in outcome.rates if variant.draft_len == AUTO):
        ratio = outcome.over_best(auto)
        yield (
            outcome.text,
            str(outcome.at_once),
            f"{outcome.batch_slope:g}",
            f"{statistics.median(outcome.rates[BASELINE]):.0f}",
            str(best),
            f"{outcome.over(best, BASELINE).median:.2f}",
            str(auto),
            f"{outcome.over(auto, BASELINE).median:.2f}",
            f"{ratio.median:.3f}",
            f"{ratio.p10:.3f}-{ratio.p90:.3f}",
        )


if __name__ == "__main__":
    main()
