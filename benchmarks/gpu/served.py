"""Measures a pair served by Triton with the load generator of `tandem bench`."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.figures import FigureLog, TimeBudget
from benchmarks.inflated.checkpoint import plant
from benchmarks.inflated.texts import Expected
from benchmarks.servers import entry_name, serving_loops
from tandem.bls.settings import AUTO
from tandem.contract import entry as tensors
from tandem.demo.tokens import TOKENIZER
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.benchmark.load_generator import LoadGenerator, LoadPlan
from tandem.tools.benchmark.scenario import Scenario
from tandem.tools.benchmark.statistics import Measurement
from tandem.tools.benchmark.variant import BASELINE, Variant
from tandem.tools.profiles.profile import read_profile

DRAFT_4, DRAFT_AUTO = Variant("draft_model", 4), Variant("draft_model", AUTO)
VARIANTS = (
    BASELINE,
    DRAFT_4,
    Variant("draft_model", 8),
    DRAFT_AUTO,
    Variant("draft_model", 4, draft_ahead="true"),
    Variant("prompt_lookup"),
    Variant("hybrid"),
)
CONCURRENT_VARIANTS = (BASELINE, DRAFT_4, DRAFT_AUTO)
ACCEPTANCE_VARIANTS = (BASELINE, DRAFT_4, Variant("draft_model", 4, use_draft_logits=True))
# Settings that the profile copies for both engines.
_KEPT = (
    "device",
    "dtype",
    "threads",
    "max_seq_len",
    "kv_cache_tokens",
    "kv_block_tokens",
    "max_batch_tokens",
    "paged_kv_cache",
)


def measure_served(
    budget: TimeBudget,
    settings: dict[str, TorchSettings],
    texts: Sequence[Expected],
    options: argparse.Namespace,
) -> None:
    """Serve the pair on free ports. Measure every drafter, draft logits, and concurrent requests.

    The server has one entry per number of loop processes.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "inflated.yaml")
        path.write_text(yaml.safe_dump(_profile(settings, max(options.at_once))))
        profile = read_profile(path)
        began = time.perf_counter()
        server = stack.enter_context(serving_loops(profile, options.instances, plant))
        budget.figures.add("Triton has started", seconds=time.perf_counter() - began)
        measure = partial(_measure, budget.figures, server.grpc_url)
        single = LoadPlan(
            scenarios=[Scenario("demo", [{tensors.INPUT_IDS: list(t.prompt)} for t in texts])],
            variants=VARIANTS,
            concurrencies=[1],
            max_tokens=options.tokens,
            repetitions=1,
            streamed=0,
            more={tensors.END_ID: -1},  # min_tokens would add work per step
            prompts_each=1,
        )
        budget.run("drafters", "Triton", partial(measure, options.instances[0], single))
        sampled = replace(
            single,
            variants=ACCEPTANCE_VARIANTS,
            repetitions=options.turns,
            more={tensors.END_ID: -1, tensors.TEMPERATURE: 0.8},
        )
        logits = partial(measure, options.instances[0], sampled, ", sampled")
        budget.run("logits", "Triton, sampled", logits)
        for concurrency, number in product(options.at_once, options.instances):
            name = f", {concurrency} at once, {number} loops"
            plan = replace(single, variants=CONCURRENT_VARIANTS, concurrencies=[concurrency])
            concurrent = partial(measure, number, plan, name)
            budget.run(f"{concurrency} at once", f"Triton{name}", concurrent)


def _measure(
    figures: FigureLog, url: str, instances: int, plan: LoadPlan, suffix: str = ""
) -> None:
    """Run a plan on the entry with this number of loop processes.

    suffix: added to the names of the figures.
    """
    with LoadGenerator(url, entry_name(instances), plan) as load:
        measurements = load.measurements()
    for measurement in measurements:
        by_logits = " by logits" if measurement.variant.use_draft_logits else ""
        name = f"Triton {measurement.variant}{by_logits}{suffix}"
        figures.add(name, **_figures(measurement))


def _figures(measurement: Measurement) -> dict[str, float]:
    spreads = {
        "tokens_a_second": measurement.spread("tokens_per_second"),
        "of_none": measurement.speedup,
        "tokens_a_round": measurement.spread("tokens_per_round"),
        "acceptance": measurement.spread("acceptance_rate"),
        "orchestration_seconds": measurement.spread("orchestration_seconds"),
    }
    return {
        **{name: spread.median for name, spread in spreads.items() if spread},
        "texts": sum(len(repetition.answers) for repetition in measurement.whole),
        "differ_from_none": measurement.num_different,
    }


def _profile(settings: dict[str, TorchSettings], at_once: int) -> dict[str, Any]:
    engines = {
        role: {"kind": "torch", "checkpoint": own.checkpoint}
        | {name: getattr(own, name) for name in _KEPT}
        for role, own in settings.items()
    }
    return {
        "name": "inflated",
        "engines": engines,
        "tokenizer": {"folder": str(TOKENIZER)},
        "decoding": {"drafter": "draft_model", "draft_len": "auto"},
        "admission": {"max_requests": at_once, "max_queue": at_once},
    }
