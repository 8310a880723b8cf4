"""The same pair behind a live Triton: each drafter, draft logits, and requests at once."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.gpu.budget import TimeBudget
from benchmarks.gpu.engine_alone import checked
from benchmarks.gpu.figures import FigureLog
from benchmarks.inflated.checkpoint import plant
from benchmarks.inflated.texts import Expected
from benchmarks.loops import entry_of, planned_loops, processor_seconds, render_loops
from benchmarks.rounds import Rounds, play
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.demo.tokens import TOKENIZER
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.client.client import Client, Value
from tandem.tools.triton.server import TritonServer

MS = 1e3
CONTROL = "none"
WAYS: dict[str, dict[Tensor, Value]] = {
    CONTROL: {tensors.DRAFTER: "none"},
    "draft_model 4": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 4},
    "draft_model 8": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 8},
    "draft_model auto": {tensors.DRAFTER: "draft_model"},
    "prompt_lookup": {tensors.DRAFTER: "prompt_lookup"},
    "hybrid": {tensors.DRAFTER: "hybrid"},
}
CROWD_WAYS = (CONTROL, "draft_model 4", "draft_model auto")
SAMPLED: dict[Tensor, Value] = {
    tensors.TEMPERATURE: 0.8,
    tensors.NUM_DRAFT_TOKENS: 4,
    tensors.END_ID: -1,
}
# What a profile says of both engines alike.
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
    """An answer as its chunks bring it. statistics: what the loop says of it."""

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How many there were; 0 of the control."""
        return int(self.statistics.get("num_rounds") or 0)

    @property
    def orchestration_ms(self) -> float:
        """What the engines' own clocks leave of a round."""
        found = self.statistics
        engines = found["draft_seconds"] + found["target_seconds"]
        return MS * float(found["decoding_seconds"] - engines) / self.rounds


class ServedPair:
    """A server of the pair, with an entry for each number of loop processes, and what it said.

    Texts are compared with the demo pair's own, and with those of the control once it has answered.
    """

    def __init__(
        self, figures: FigureLog, server: TritonServer, texts: Sequence[Expected], model: str
    ) -> None:
        """Measure on this server; model: the entry for one request at a time."""
        self._figures = figures
        self._server = server
        self._texts = texts
        self._model = model
        self._control: list[list[int]] = []
        self._alone: dict[tuple[str, str], float] = {}  # tokens/s of one request, by entry and way

    def measure_way(self, name: str) -> None:
        """Ask for one text after the other."""
        with Client(self._server.grpc_url) as client:
            ask = partial(_ask, client, self._model, WAYS[name])
            ask(self._texts[0])
            said = [ask(text) for text in self._texts]
        if name == CONTROL:
            self._control = [text.tokens for text in said]
        rate = statistics.median(len(text.tokens) / text.seconds for text in said)
        self._alone.setdefault((self._model, CONTROL), rate)
        rounds = [text for text in said if text.rounds]
        self._figures.add(
            f"Triton {name}",
            tokens_a_second=rate,
            of_none=rate / self._alone[self._model, CONTROL],
            tokens_a_round=_median([len(text.tokens) / text.rounds for text in rounds], 1.0),
            orchestration_ms=_median([text.orchestration_ms for text in rounds], 0.0),
            **checked(self._texts, [text.tokens for text in said]),
            differ_from_control=self._differ(said),
        )

    def measure_logits(self, turns: int, vocab_size: int) -> None:
        """Sample the same by ids and by logits, in turns; tell what logits add to a round."""
        ids = np.array(self._texts[0].prompt, np.int32)
        tokens = len(self._texts[0].text)
        found: dict[bool, list[Rounds]] = {False: [], True: []}
        with Client(self._server.grpc_url) as client:
            for turn in range(turns + 1):  # the first one warms up
                for by_logits in (False, True):
                    more = {tensors.SEED: turn, tensors.USE_DRAFT_LOGITS: by_logits}
                    rounds = play(client, ids, tokens, {**SAMPLED, **more}, self._model)
                    found[by_logits] += [rounds] if turn else []
        by_ids, by_logits_ms = (
            [_median([getattr(r, name) for r in found[way]], 0.0) for name in _PARTS]
            for way in (False, True)
        )
        self._figures.add(
            "Triton draft logits",
            vocab_size=vocab_size,
            ms_a_round_by_ids=by_ids[0],
            ms_a_round_by_logits=by_logits_ms[0],
            orchestration_ms_by_ids=by_ids[1],
            orchestration_ms_by_logits=by_logits_ms[1],
        )

    def measure_crowd(self, instances: int, name: str, crowd: int) -> None:
        """Ask for texts at once, of an entry with so many loops."""
        model = entry_of(instances)
        asked = [self._texts[i % len(self._texts)] for i in range(crowd)]
        with ExitStack() as stack:
            url = self._server.grpc_url
            clients = [stack.enter_context(Client(url)) for _ in asked]  # one stream each
            pool = stack.enter_context(ThreadPoolExecutor(crowd))
            spent, began = processor_seconds(self._server, model), time.perf_counter()
            said = list(pool.map(_ask, clients, repeat(model), repeat(WAYS[name]), asked))
            seconds = time.perf_counter() - began
            spent = processor_seconds(self._server, model) - spent
        rounds = sum(text.rounds for text in said)
        rate = sum(len(text.tokens) for text in said) / seconds
        alone = self._alone.setdefault((model, f"crowd, {name}"), rate / crowd)
        self._figures.add(
            f"Triton {name}, {crowd} at once, {instances} loops",
            tokens_a_second=rate,
            scaling=rate / alone,
            rounds_a_second=rounds / seconds,
            loop_processor_ms_a_round=MS * spent / rounds if rounds else 0.0,
            texts=len(said),
            differ_from_control=self._differ(said),
        )

    def _differ(self, said: Sequence[ServedText]) -> int | None:
        """How many texts are not the control's; None: it has not answered."""
        if not self._control:
            return None
        count = len(self._control)
        return sum(text.tokens != self._control[i % count] for i, text in enumerate(said))


_PARTS = ("whole", "orchestration")


def measure_served(  # noqa: PLR0917
    figures: FigureLog,
    budget: TimeBudget,
    settings: dict[str, TorchSettings],
    texts: Sequence[Expected],
    crowds: Sequence[int],
    instances: Sequence[int],
    turns: int,
) -> None:
    """Serve the pair on free ports; measure every way, then some with so many requests at once."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        profile = Path(folder, "inflated.yaml")
        profile.write_text(yaml.safe_dump(_profile(settings, max(crowds))))
        planned = {number: planned_loops(profile, number) for number in instances}
        models = render_loops(planned, Path(folder))
        plant(models)
        threads = max(plan.thread_pool_size for plan in planned.values())
        began = time.perf_counter()
        server = stack.enter_context(TritonServer(models, thread_pool_size=threads))
        figures.add("Triton has started", seconds=time.perf_counter() - began)
        pair = ServedPair(figures, server, texts, entry_of(instances[0]))
        for name in WAYS:
            budget.run("way", f"Triton {name}", partial(pair.measure_way, name))
        vocab_size = _vocab_size(settings["target"])
        logits = partial(pair.measure_logits, turns, vocab_size)
        budget.run("logits", "Triton draft logits", logits)
        for crowd in crowds:
            for number in instances:
                for name in CROWD_WAYS:
                    budget.run(
                        f"{crowd} at once",
                        f"Triton {name}, {crowd} at once, {number} loops",
                        partial(pair.measure_crowd, number, name, crowd),
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


def _ask(client: Client, model: str, inputs: dict[Tensor, Value], text: Expected) -> ServedText:
    given: dict[Tensor, Value] = {
        tensors.INPUT_IDS: list(text.prompt),
        tensors.MAX_TOKENS: len(text.text),
        tensors.END_ID: -1,  # nothing ends it; min_tokens would ban what does, step by step
        **inputs,
    }
    said = ServedText()
    for chunk in client.stream(model, given):
        said.tokens += chunk.tokens
        said.seconds = chunk.seconds
        said.statistics = dict(chunk.statistics or said.statistics)
    return said


def _median(values: Sequence[float], none: float) -> float:
    return statistics.median(values) if values else none
