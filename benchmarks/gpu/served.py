"""The same pair behind a live Triton: each drafter, and requests at once."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.figures import FigureLog
from benchmarks.inflated.checkpoint import plant
from benchmarks.inflated.texts import Expected
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.demo.tokens import TOKENIZER
from tandem.engines.torch.settings import TorchSettings
from tandem.tools.client.client import Client, Value
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

MODEL = "bls_stream"
MS = 1e3
WAYS: dict[str, dict[Tensor, Value]] = {
    "none": {tensors.DRAFTER: "none"},
    "draft_model 4": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 4},
    "draft_model 8": {tensors.DRAFTER: "draft_model", tensors.NUM_DRAFT_TOKENS: 8},
    "draft_model auto": {tensors.DRAFTER: "draft_model"},
    "prompt_lookup": {tensors.DRAFTER: "prompt_lookup"},
    "hybrid": {tensors.DRAFTER: "hybrid"},
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
CROWD_WAYS = ("none", "draft_model 4", "draft_model auto")


def measure_served(
    figures: FigureLog,
    settings: dict[str, TorchSettings],
    texts: Sequence[Expected],
    crowds: Sequence[int],
) -> None:
    """Serve the pair on free ports; measure every way, then some with so many requests at once."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "inflated.yaml")
        profile.write_text(yaml.safe_dump(_profile(settings, max(crowds))))
        planned = deployment.load(profile)
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        plant(models)
        with (
            TritonServer(models, thread_pool_size=planned.thread_pool_size) as server,
            Client(server.grpc_url) as client,
        ):
            alone = 0.0
            for name, inputs in WAYS.items():
                rate = _measure_way(figures, client, name, inputs, texts)
                alone = alone or rate
                figures.add(f"Triton {name}, speedup", of_none=rate / alone)
            for name in CROWD_WAYS:
                for crowd in crowds:
                    _measure_crowd(figures, server.grpc_url, name, crowd, texts)


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


def _measure_way(
    figures: FigureLog,
    client: Client,
    name: str,
    inputs: dict[Tensor, Value],
    texts: Sequence[Expected],
) -> float:
    """Ask for every text; return tokens a second, the median over the texts."""
    ask = partial(_ask, client, inputs)
    ask(texts[0])
    rates: list[float] = []
    orchestration: list[float] = []
    per_round: list[float] = []
    for text in texts:
        began = time.perf_counter()
        answer = ask(text)
        rates.append(answer.num_tokens / (time.perf_counter() - began))
        found = answer.statistics
        if found and found["num_rounds"]:
            engines = found["draft_seconds"] + found["target_seconds"]
            orchestration.append(MS * (found["decoding_seconds"] - engines) / found["num_rounds"])
            per_round.append(answer.num_tokens / found["num_rounds"])
    figures.add(
        f"Triton {name}",
        tokens_a_second=statistics.median(rates),
        tokens_a_round=statistics.median(per_round or [1.0]),
        orchestration_ms=statistics.median(orchestration or [0.0]),
    )
    return statistics.median(rates)


def _measure_crowd(
    figures: FigureLog, url: str, name: str, crowd: int, texts: Sequence[Expected]
) -> None:
    """Ask for texts at once; tell the tokens a second of all together."""
    asked = [texts[i % len(texts)] for i in range(crowd)]
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(url)) for _ in asked]  # one stream each
        pool = stack.enter_context(ThreadPoolExecutor(crowd))
        began = time.perf_counter()
        answers = list(pool.map(_ask, clients, repeat(WAYS[name]), asked))
        seconds = time.perf_counter() - began
    rounds = sum(answer.statistics["num_rounds"] for answer in answers if answer.statistics)
    figures.add(
        f"Triton {name}, {crowd} at once",
        tokens_a_second=sum(answer.num_tokens for answer in answers) / seconds,
        rounds_a_second=rounds / seconds,
    )


def _ask(client: Client, inputs: dict[Tensor, Value], text: Expected) -> Any:
    given: dict[Tensor, Value] = {
        tensors.INPUT_IDS: list(text.prompt),
        tensors.MAX_TOKENS: len(text.text),
        tensors.MIN_TOKENS: len(text.text),
        **inputs,
    }
    return client.answer(MODEL, given)
