"""`tandem tune`: which drafter, draft length and n-gram size serve some prompts fastest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import yaml

from tandem.bls.drafters.registry import DrafterKind, DrafterName
from tandem.bls.settings import AUTO
from tandem.tools.benchmark.report import SPREAD
from tandem.tools.benchmark.scenario import Scenario
from tandem.tools.benchmark.statistics import VariantStatistics
from tandem.tools.benchmark.target_server import served_drafters
from tandem.tools.benchmark.variant import CONTROL, Variant, variants_of
from tandem.tools.commands import measuring
from tandem.tools.commands.options import add_count

DRAFT_LENGTHS = (2, 4, 8, 12, AUTO)
NGRAM_SIZES = (1, 2, 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    measuring.add_measuring(parser, max_tokens=128, repetitions=3, streamed=0)
    measuring.add_variants(
        parser,
        drafters="those served that propose drafts of their own",
        lengths="2,4,8,12,auto",
        ngrams=NGRAM_SIZES,
    )
    load = parser.add_argument_group("load")
    add_count(load, "--concurrency", "The number of requests at once", 1)


def run(options: argparse.Namespace) -> int:
    target = measuring.chosen_target(options)
    scenarios = measuring.prompts_of(options)
    # One setting must serve all kinds of prompts.
    together = Scenario(
        ", ".join(scenario.name for scenario in scenarios),
        [prompt for scenario in scenarios for prompt in scenario.prompts],
    )
    served = served_drafters(target)
    drafters = measuring.drafters_of(served, options.drafter)
    variants = variants_of(
        # Unasked, one that chooses among the others would double the time.
        drafters if options.drafter else [kind for kind in drafters if kind.proposes],
        measuring.lengths_of(served, options.num_draft_tokens, DRAFT_LENGTHS),
        options.max_matching_ngram_size,
        use_draft_logits=options.use_draft_logits,
    )
    report = measuring.measure(options, target, [together], variants, [options.concurrency])
    measuring.show(options, report)
    print("\n".join(advice(report.rows, served.kinds)))
    return 0


def advice(
    rows: Sequence[VariantStatistics], kinds: Mapping[DrafterName, DrafterKind]
) -> list[str]:
    """Say which variant is fastest, which others are as fast, and the profile's lines for it."""
    ranked = sorted(rows, key=_speed, reverse=True)
    best, variant = ranked[0], ranked[0].cell.variant
    lines = [f"fastest: {_named(best)}"]
    low = best.speedup.low if best.speedup else 0.0
    near = [row for row in ranked[1:] if _speed(row) >= low]
    if near:
        lines.append(f"within its spread: {', '.join(map(_named, near))}")
    return [*lines, "in the profile:", "", profile_lines(variant, kinds[variant.drafter])]


def profile_lines(variant: Variant, drafter: DrafterKind) -> str:
    decoding: dict[str, object] = {"drafter": variant.drafter}
    if variant.draft_len is not None and not drafter.only_looks_up:
        decoding["draft_len"] = "auto" if variant.draft_len == AUTO else variant.draft_len
    if variant.use_draft_logits:
        decoding["use_draft_logits"] = True
    lookup = {}
    if drafter.looks_up and variant.draft_len not in (None, AUTO):
        lookup["prompt_lookup_num_tokens"] = variant.draft_len
    if variant.ngram_size is not None:
        lookup["max_matching_ngram_size"] = variant.ngram_size
    if lookup:
        decoding["prompt_lookup"] = lookup
    text: str = yaml.safe_dump({"decoding": decoding}, sort_keys=False)
    return text.rstrip()


def _speed(row: VariantStatistics) -> float:
    """The median speedup; the control's is 1."""
    return row.speedup.median if row.speedup else 0.0


def _named(row: VariantStatistics) -> str:
    spread = row.speedup
    if row.cell.variant == CONTROL or spread is None:
        return f"{CONTROL.drafter}: no drafts"
    if spread.is_one:
        return f"{row.cell.variant} {spread.median:.2f}x (no spread: more --repetitions show one)"
    return f"{row.cell.variant} {spread.median:.2f}x ({SPREAD}: {spread.low:.2f}-{spread.high:.2f})"
