"""Compare Tandem's loop with vLLM's own speculation on this machine, without Triton.

    python -m benchmarks.vllm_check --target /models/Qwen2.5-7B-Instruct \
        --draft /models/Qwen2.5-0.5B-Instruct

The variants take turns in one run: the target alone, vLLM's own speculation with the draft model,
with n-grams, with Tandem's lookup inside vLLM and with both, and the loop with the draft model,
prompt lookup and `hybrid` with `auto`. Six vLLM processes run at once, so the device must have
memory for five targets and three drafts.

The output of each variant is compared token by token with the target alone. In 16-bit types, the
output of a batch can differ if two tokens are equally likely. The rows of the target alone show how
often that happens.

`--more-layers` adds layers to the target that don't change its output. With the demo's pair, such a
target takes as many times longer than the draft as large models on a GPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.engine_loop import Loop, ask
from benchmarks.turns import in_turns
from tandem.bls.draft_length import DraftPlanner
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.errors import EngineCallError
from tandem.bls.ports import EngineRole
from tandem.bls.request import Request
from tandem.bls.settings import AUTO, EngineSettings, LoopSettings
from tandem.engines.engine import Engine, EngineRequest, Ids
from tandem.engines.kinds import VLLM
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings
from tandem.tools.profiles.checkpoint import read_checkpoint

PROMPTS = Path(__file__).parents[1] / "tandem" / "demo" / "prompts.jsonl"
# Share of the device's memory for each engine.
FRACTIONS = {
    "target": 0.16,
    "draft": 0.06,
    "with draft model": 0.2,
    "with n-grams": 0.16,
    "with prompt lookup": 0.16,
    "with both": 0.2,
}
ALONE = "target alone"
KV_BLOCK_TOKENS = 32


class Generated(NamedTuple):
    """One answer. computed: tokens that the target computed per round."""

    tokens: list[int]
    rounds: int
    computed: float


class Measured(NamedTuple):
    """The answers to all requests of a turn, and the seconds that they took."""

    seconds: float
    answers: list[Generated]


def main() -> None:
    options = _options()
    with ExitStack() as stack:
        if options.more_layers:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options.target = add_layers(options.target, Path(folder), options.more_layers)
        prompts = _prompts(options)
        engines = _start_engines(options, max(map(len, prompts)) + options.tokens + 64)
        for engine in engines.values():
            stack.callback(engine.close)
        variants = _variants(options, engines)
        _table(options, variants, prompts)


def add_layers(checkpoint: Path, folder: Path, count: int) -> Path:
    """Write a checkpoint with more layers, which add zero to their input. Return its folder."""
    config = json.loads((checkpoint / "config.json").read_text())
    weights = load_file(checkpoint / "model.safetensors")
    first, there = "model.layers.0.", config["num_hidden_layers"]
    for name in [name for name in weights if name.startswith(first)]:
        writes = name.endswith(("o_proj.weight", "down_proj.weight"))
        for number in range(there, there + count):
            weight = np.zeros_like(weights[name]) if writes else weights[name].copy()
            weights[f"model.layers.{number}.{name.removeprefix(first)}"] = weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config["num_hidden_layers"] = there + count
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("generation_config.json", "tokenizer.json"):
        if (checkpoint / name).exists():
            (folder / name).write_bytes((checkpoint / name).read_bytes())
    return folder


def _prompts(options: argparse.Namespace) -> list[Ids]:
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    texts = texts_of(options, max(options.requests))
    return [np.array(tokenizer.encode(text).ids, np.int32) for text in texts]


def _start_engines(options: argparse.Namespace, max_seq_len: int) -> dict[str, VllmEngine]:
    length, max_requests = options.draft_len, max(options.requests)

    def start(name: str) -> VllmEngine:
        began = time.perf_counter()
        model = options.draft if name == "draft" else options.target
        draft_model = {"method": "draft_model", "model": str(options.draft)}
        methods: dict[str, dict[str, Any]] = {
            "with draft model": draft_model,
            "with n-grams": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
            # Its drafts are as long as the matching text, up to this length.
            "with prompt lookup": {"method": "prompt_lookup", "num_speculative_tokens": 16},
            "with both": {**draft_model, "prompt_lookup_num_tokens": 16},
        }
        own = methods.get(name)
        engine = VllmEngine(
            VllmSettings(
                model=str(model),
                vocab_size=read_checkpoint(model).vocab_size,
                max_seq_len=max_seq_len,
                max_draft_len=options.max_draft_len if name == "target" else 0,
                kv_block_tokens=KV_BLOCK_TOKENS,
                kv_cache_tokens=2
                * max_requests
                * -(-max_seq_len // KV_BLOCK_TOKENS)
                * KV_BLOCK_TOKENS,
                max_batch_size=max_requests,
                gpu_memory_fraction=FRACTIONS[name],
                speculative_config=own and {"num_speculative_tokens": length, **own},
                python=options.python,
                enforce_eager=options.eager,
                tensor_parallel_size=options.tensor_parallel_size,
                arguments=options.arguments,
                threads=options.threads,
                dtype=options.dtype,
            )
        )
        Console().print(f"{name} started in {time.perf_counter() - began:.0f} s")
        return engine

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FRACTIONS, pool.map(start, FRACTIONS), strict=True))


def _variants(
    options: argparse.Namespace, engines: dict[str, VllmEngine]
) -> dict[str, Callable[[Ids], Generated]]:
    whole = partial(_generate_whole, options.tokens)
    variants: dict[str, Callable[[Ids], Generated]] = {
        ALONE: partial(whole, engines["target"]),
        "vLLM, draft model": partial(whole, engines["with draft model"]),
        "vLLM, n-grams": partial(whole, engines["with n-grams"]),
        "vLLM, Tandem's lookup": partial(whole, engines["with prompt lookup"]),
        "vLLM, draft model and lookup": partial(whole, engines["with both"]),
    }
    pair: dict[EngineRole, Engine] = {"target": engines["target"], "draft": engines["draft"]}
    asked: dict[str, dict[str, Any]] = {
        "loop, draft model": {"drafter": "draft_model", "draft_len": options.draft_len},
        "loop, prompt lookup": {"drafter": "prompt_lookup"},
        "loop, hybrid, auto": {"drafter": "hybrid", "draft_len": AUTO},
    }
    for name, given in asked.items():
        loop = _LoopVariant(options, pair, engines["target"], given)
        variants[name] = loop.generate
    return variants


class _LoopVariant:
    """The loop with one drafter. All of its texts share what `auto` learns."""

    def __init__(
        self,
        options: argparse.Namespace,
        engines: dict[EngineRole, Engine],
        target: VllmEngine,
        asked: dict[str, Any],
    ) -> None:
        self._engines, self._asked, self._tokens = engines, asked, options.tokens
        self._max_draft_len = options.max_draft_len
        self._running, self._lock = 0, threading.Lock()
        sizes = EngineSettings(
            model="target",
            capabilities=VLLM,
            vocab_size=target._settings.vocab_size,
            max_seq_len=target._settings.max_seq_len,
            max_draft_len=options.max_draft_len,
            kv_cache_tokens=target._settings.kv_cache_tokens,
            kv_block_tokens=target._settings.kv_block_tokens,
            timeout=600.0,
        )
        settings = LoopSettings(
            target=sizes, draft=sizes, preprocessing_model="", postprocessing_model=""
        )
        planner = DraftPlanner(
            options.max_draft_len,
            lambda: self._running,
            clock=time.monotonic,
            stops_when_unsure=settings.draft_stops_when_unsure,
        )
        self._context = DrafterContext(settings, _AlwaysHealthy(), planner)

    def generate(self, prompt: Ids) -> Generated:
        defaults = self._context.settings
        request = Request(
            prompt_ids=prompt,
            max_tokens=self._tokens,
            max_draft_len=self._max_draft_len,
            prompt_lookup_num_tokens=defaults.prompt_lookup_num_tokens,
            max_matching_ngram_size=defaults.max_matching_ngram_size,
            **self._asked,
        )
        with self._lock:
            self._running += 1
        loop = Loop(self._engines)
        decoding = loop.run(request, self._context)
        with self._lock:
            self._running -= 1
        rounds = decoding.statistics.num_rounds
        return Generated(loop.tokens, rounds, mean(loop.computed) if loop.computed else 1.0)


class _AlwaysHealthy:
    """The `DrafterHealth` of a draft engine that must not fail."""

    available = True

    def failed(self, error: EngineCallError) -> None:
        raise error

    def rejected(self, error: Exception, without: str = "drafts") -> None:  # noqa: ARG002
        raise error


def _generate_whole(length: int, engine: Engine, prompt: Ids) -> Generated:
    answer = ask(engine, EngineRequest("", prompt, length))
    rounds = length - answer.usage.accepted_tokens
    prefill = len(prompt) - answer.usage.reused_blocks * KV_BLOCK_TOKENS
    computed = (answer.usage.computed_tokens - prefill) / rounds
    return Generated(list(answer.tokens), rounds, computed)


def _table(
    options: argparse.Namespace,
    variants: dict[str, Callable[[Ids], Generated]],
    prompts: list[Ids],
) -> None:
    columns = "requests at once", "tokens/s", "range", "vs. alone", "vs. vLLM's draft model"
    more = "tokens per round", "computed per round", "differ"
    table = Table("variant", *columns, *more, box=None)
    want = [one.tokens for one in _measure(variants[ALONE], prompts, 0).answers]
    for count in options.requests:
        measure = {
            name: partial(_measure, variant, prompts[:count]) for name, variant in variants.items()
        }
        speeds: dict[str, float] = {}
        for name, turns in in_turns(measure, options.turns).items():
            rates = [count * options.tokens / turn.seconds for turn in turns]
            made = [one for turn in turns for one in turn.answers]
            differ = sum(one.tokens != want[i % count] for i, one in enumerate(made))
            speeds[name] = median(rates)
            own = speeds.get("vLLM, draft model", 0.0)
            table.add_row(
                *(name, str(count), f"{speeds[name]:.0f}", f"{min(rates):.0f}-{max(rates):.0f}"),
                f"{speeds[name] / speeds[ALONE]:.2f}x",
                f"{speeds[name] / own:.2f}x" if own else "",
                f"{sum(len(one.tokens) for one in made) / sum(one.rounds for one in made):.2f}",
                f"{mean(one.computed for one in made):.1f}",
                f"{differ} of {len(made)}",
            )
    Console(width=140).print(table)


def _measure(generate: Callable[[Ids], Generated], prompts: list[Ids], _turn: int) -> Measured:
    with ThreadPoolExecutor(len(prompts)) as pool:
        began = time.perf_counter()
        answers = list(pool.map(generate, prompts))
        return Measured(time.perf_counter() - began, answers)


def common_options() -> argparse.ArgumentParser:
    """Return the options of all comparisons with vLLM."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--target", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--draft", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--python", default="python3", help="the Python that has vLLM")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines with `prompt`")
    parser.add_argument("--kind", default="completion", help="of the prompts: completion or edit")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU")
    parser.add_argument("--dtype", default="auto")
    return parser


def texts_of(options: argparse.Namespace, count: int) -> list[str]:
    """Return prompts of the kind that was asked for."""
    rows = map(json.loads, options.prompts.read_text().splitlines())
    texts = [row["prompt"] for row in rows if row.get("kind", options.kind) == options.kind]
    return list(islice(cycle(texts), count))


def _options() -> argparse.Namespace:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=description, parents=[common_options()])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--max-draft-len", type=int, default=8, help="of `auto` and prompt lookup")
    parser.add_argument("--more-layers", type=int, default=0, help="of the target")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--arguments", type=json.loads, help="more of vLLM's, as a JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
