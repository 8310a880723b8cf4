"""Measures a pair served by Triton: each drafter, draft logits, and concurrent requests."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.gpu.figures import FigureLog, TimeBudget
from benchmarks.inflated.checkpoint import plant
from benchmarks.inflated.texts import Expected, compared
from benchmarks.rounds import MS, Rounds, play
from benchmarks.servers import entry_of, processor_seconds, serving_loops
from benchmarks.turns import in_turns
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.demo.tokens import TOKENIZER
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.client.client import Client, Value
from tandem.tools.profiles.profile import read_profile
from tandem.tools.triton.server import TritonServer

NONE = "none"
VARIANTS: dict[str, dict[Tensor, Value]] = {
    NONE: {tensors.DRAFTER: "none"},
    "draft_model 4": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 4},
    "draft_model 8": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 8},
    "draft_model auto": {tensors.DRAFTER: "draft_model"},
    "prompt_lookup": {tensors.DRAFTER: "prompt_lookup"},
    "hybrid": {tensors.DRAFTER: "hybrid"},
}
CONCURRENT_VARIANTS = (NONE, "draft_model 4", "draft_model auto")
SAMPLED: dict[Tensor, Value] = {
    tensors.TEMPERATURE: 0.8,
    tensors.NUM_DRAFT_TOKENS: 4,
    tensors.END_ID: -1,
}
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


@dataclass
class ServedText:
    """An answer. seconds: its duration. statistics: the loop's `spec_decode_statistics`."""

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Number of rounds; 0 without a drafter."""
        return int(self.statistics.get("num_rounds") or 0)

    @property
    def orchestration_ms(self) -> float:
        """Milliseconds per round in which no engine computed, as the engines report."""
        found = self.statistics
        engines = found["draft_seconds"] + found["target_seconds"]
        return MS * float(found["decoding_seconds"] - engines) / self.rounds


class ServedPair:
    """A server of the pair, with one entry per number of loop processes.

    Outputs are compared with the demo pair's, and with the baseline's once they are known.
    model: the entry for single requests. settings: the target's.
    """

    def __init__(
        self,
        figures: FigureLog,
        server: TritonServer,
        texts: Sequence[Expected],
        model: str,
        settings: TorchSettings,
    ) -> None:
        self._figures = figures
        self._server = server
        self._texts = texts
        self._model = model
        self._settings = settings
        self._baseline: list[list[int]] = []
        self._alone: dict[tuple[str, str], float] = {}  # tokens/s by entry and drafter

    def measure_variant(self, name: str) -> None:
        """Decode the prompts one after the other with a drafter."""
        with Client(self._server.grpc_url) as client:
            ask = partial(_ask, client, model=self._model, inputs=VARIANTS[name])
            ask(self._texts[0])
            outputs = [ask(text) for text in self._texts]
        if name == NONE:
            self._baseline = [text.tokens for text in outputs]
        rate = statistics.median(len(text.tokens) / text.seconds for text in outputs)
        self._alone.setdefault((self._model, NONE), rate)
        rounds = [text for text in outputs if text.rounds]
        self._figures.add(
            f"Triton {name}",
            tokens_a_second=rate,
            of_none=rate / self._alone[self._model, NONE],
            tokens_a_round=_median([len(text.tokens) / text.rounds for text in rounds], 1.0),
            orchestration_ms=_median([text.orchestration_ms for text in rounds], 0.0),
            **compared(self._texts, [text.tokens for text in outputs], self._settings),
            differ_from_none=self._differ(outputs),
        )

    def measure_logits(self, turns: int, vocab_size: int) -> None:
        """Measure the cost of draft logits per round.

        Alternates between acceptance by ids and by logits.
        """
        ids = np.array(self._texts[0].prompt, np.int32)
        with Client(self._server.grpc_url) as client:

            def sample(by_logits: bool, turn: int) -> Rounds:
                more = {tensors.SEED: turn, tensors.USE_DRAFT_LOGITS: by_logits}
                return play(client, self._model, ids, len(self._texts[0].text), SAMPLED | more)

            variants = {"ids": partial(sample, False), "logits": partial(sample, True)}
            figures: dict[str, float] = {}
            for variant, rounds in in_turns(variants, turns).items():
                figures[f"ms_a_round_by_{variant}"] = statistics.median(r.whole for r in rounds)
                own = statistics.median(r.orchestration for r in rounds)
                figures[f"orchestration_ms_by_{variant}"] = own
        self._figures.add("Triton draft logits", vocab_size=vocab_size, **figures)

    def measure_concurrent(self, instances: int, name: str, concurrency: int) -> None:
        """Send concurrent requests to the entry with ``instances`` loop processes."""
        model = entry_of(instances)
        asked = [self._texts[i % len(self._texts)] for i in range(concurrency)]
        with ExitStack() as stack:
            url = self._server.grpc_url
            clients = [stack.enter_context(Client(url)) for _ in asked]  # a client has one stream
            pool = stack.enter_context(ThreadPoolExecutor(concurrency))
            spent, began = processor_seconds(self._server)[model], time.perf_counter()
            ask = partial(_ask, model=model, inputs=VARIANTS[name])
            outputs = list(pool.map(ask, clients, asked))
            seconds = time.perf_counter() - began
            spent = processor_seconds(self._server)[model] - spent
        rounds = sum(text.rounds for text in outputs)
        rate = sum(len(text.tokens) for text in outputs) / seconds
        alone = self._alone.setdefault((model, f"concurrent {name}"), rate / concurrency)
        self._figures.add(
            f"Triton {name}, {concurrency} at once, {instances} loops",
            tokens_a_second=rate,
            scaling=rate / alone,
            rounds_a_second=rounds / seconds,
            loop_processor_ms_a_round=MS * spent / rounds if rounds else 0.0,
            texts=len(outputs),
            differ_from_none=self._differ(outputs),
        )

    def _differ(self, outputs: Sequence[ServedText]) -> int | None:
        """Return how many outputs differ from the baseline's, or None if those aren't known yet."""
        if not self._baseline:
            return None
        count = len(self._baseline)
        return sum(text.tokens != self._baseline[i % count] for i, text in enumerate(outputs))


def measure_served(
    budget: TimeBudget,
    settings: dict[str, TorchSettings],
    texts: Sequence[Expected],
    options: argparse.Namespace,
) -> None:
    """Serve the pair on free ports, and measure every drafter, then concurrent requests."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "inflated.yaml")
        path.write_text(yaml.safe_dump(_profile(settings, max(options.at_once))))
        profile = read_profile(path)
        began = time.perf_counter()
        server = stack.enter_context(serving_loops(profile, options.instances, plant))
        budget.figures.add("Triton has started", seconds=time.perf_counter() - began)
        model = entry_of(options.instances[0])
        pair = ServedPair(budget.figures, server, texts, model, settings["target"])
        for name in VARIANTS:
            budget.run("variant", f"Triton {name}", partial(pair.measure_variant, name))
        vocab_size = _vocab_size(settings["target"])
        logits = partial(pair.measure_logits, options.turns, vocab_size)
        budget.run("logits", "Triton draft logits", logits)
        for concurrency, number in product(options.at_once, options.instances):
            for name in CONCURRENT_VARIANTS:
                budget.run(
                    f"{concurrency} at once",
                    f"Triton {name}, {concurrency} at once, {number} loops",
                    partial(pair.measure_concurrent, number, name, concurrency),
                )


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


def _vocab_size(settings: TorchSettings) -> int:
    config: dict[str, Any] = yaml.safe_load(Path(settings.checkpoint, "config.json").read_text())
    return int(config["vocab_size"])


def _ask(client: Client, text: Expected, *, model: str, inputs: dict[Tensor, Value]) -> ServedText:
    given: dict[Tensor, Value] = {
        tensors.INPUT_IDS: list(text.prompt),
        tensors.MAX_TOKENS: len(text.text),
        tensors.END_ID: -1,  # disables the end of sequence; min_tokens would add work per step
        **inputs,
    }
    output = ServedText()
    for chunk in client.stream(model, given):
        output.tokens += chunk.tokens
        output.seconds = chunk.seconds
        output.statistics = dict(chunk.statistics or output.statistics)
    return output


def _median(values: Sequence[float], none: float) -> float:
    return statistics.median(values) if values else none
