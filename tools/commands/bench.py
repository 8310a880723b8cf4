"""`tandem bench`: the speedup of speculation on a live server, over the control."""

from __future__ import annotations

import argparse

from tandem.tools.benchmark.scenario import scenarios_of_lengths
from tandem.tools.benchmark.target_server import served_drafters
from tandem.tools.benchmark.variant import variants_of
from tandem.tools.commands import measuring
from tandem.tools.commands.options import at_least


def add_options(parser: argparse.ArgumentParser) -> None:
    prompts = measuring.add_measuring(parser, max_tokens=128, repetitions=5, streamed=1)
    prompts.add_argument(
        "--input-tokens",
        type=measuring.several(at_least(1)),
        default=(),
        metavar="N,N",
        help="Lengths of random prompts, a scenario for each, instead of the demo's prompts.",
    )
    variants = measuring.add_variants(
        parser, drafters="the profile's own", lengths="as served", ngrams=(None,)
    )
    variants.add_argument(
        "--draft-ahead",
        type=measuring.several(measuring.draft_ahead),
        default=(None,),
        metavar="NAME,NAME",
        help="Whether a draft model drafts for the next round while the target verifies: auto, "
        "true, false (default: as served).",
    )
    parser.add_argument_group("load").add_argument(
        "--concurrency",
        type=measuring.several(at_least(1)),
        default=(1,),
        metavar="N,N",
        help="The numbers of requests at once (default: 1).",
    )


def run(options: argparse.Namespace) -> int:
    target = measuring.chosen_target(options)
    scenarios = scenarios_of_lengths(options.input_tokens, options.limit)
    if options.prompts or not scenarios:
        scenarios += measuring.prompts_of(options)
    served = served_drafters(target)
    # Without a choice it is the profile's default alone: each further one takes its time.
    drafters = measuring.drafters_of(served, options.drafter)
    variants = variants_of(
        drafters if options.drafter else drafters[:1],
        measuring.lengths_of(served, options.num_draft_tokens, (None,)),
        options.max_matching_ngram_size,
        use_draft_logits=options.use_draft_logits,
        draft_aheads=options.draft_ahead,
    )
    nums_streams = sorted(set(options.concurrency))
    report = measuring.measure(options, target, scenarios, variants, nums_streams)
    measuring.show(options, report)
    return 0
