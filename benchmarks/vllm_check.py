"""Check how fast and how exact vLLM engines are on this machine, without Triton.

    python -m benchmarks.vllm_check --target /models/Qwen2.5-7B-Instruct \
        --draft /models/Qwen2.5-0.5B-Instruct

One engine verifies the drafts of another engine in rounds, and the output is compared token by
token with the target alone. Then the same target speculates inside vLLM with the same draft model.
`--torch` also runs both checkpoints on Tandem's torch engine. The variants take turns. In 16-bit
types, the output of a batch can differ if two tokens are equally likely. The rows of the target
alone show how often that happens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.calls import GreedyCall, speculate
from benchmarks.turns import in_turns
from tandem.engines.engine import Engine
from tandem.engines.request import Ids
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings
from tandem.tools.profiles.checkpoint import read_checkpoint

PROMPT_TOKENS = 200
TURNS = 5
FRACTIONS = {"target": 0.75, "draft": 0.15}  # share of the GPU's memory


class Generated(NamedTuple):
    """One answer. target_ms, computed: the target's time and its computed tokens, per round."""

    tokens: list[int]
    rounds: int
    target_ms: float
    computed: float


class Measured(NamedTuple):
    """The answers to all requests of a turn, and the seconds that they took."""

    seconds: float
    answers: list[Generated]


def main() -> None:
    options = _options()
    vocab_size = read_checkpoint(options.target).vocab_size
    random = np.random.default_rng(1)
    max_requests = max(options.requests)
    size = max_requests, PROMPT_TOKENS
    prompts = random.integers(10, min(vocab_size, 50_000), size).astype(np.int32)

    length = PROMPT_TOKENS + options.tokens + 64
    common: dict[str, Any] = {
        "max_seq_len": length,
        "kv_cache_tokens": 2 * max_requests * length,
        "threads": options.threads,
        "dtype": options.dtype,
    }

    def vllm(model: Path, fraction: float, **more: Any) -> VllmEngine:
        began = time.perf_counter()
        started = VllmEngine(
            VllmSettings(
                model=str(model),
                vocab_size=read_checkpoint(model).vocab_size,
                max_batch_size=max_requests,
                gpu_memory_fraction=fraction,
                python=options.python,
                enforce_eager=options.eager,
                tensor_parallel_size=options.tensor_parallel_size,
                arguments=options.arguments,
                **common,
                **more,
            )
        )
        Console().print(f"{model.name} started in {time.perf_counter() - began:.0f} s")
        return started

    def torch(model: Path, **more: Any) -> Engine:
        from tandem.engines.torch.engine import TorchEngine  # noqa: PLC0415
        from tandem.engines.torch.settings import TorchSettings  # noqa: PLC0415

        return TorchEngine(TorchSettings(str(model.resolve()), **common, **more), Path())

    target = vllm(options.target, FRACTIONS["target"], max_draft_len=options.draft_len)
    pairs: dict[str, tuple[Engine, Engine]] = {
        "vLLM": (target, vllm(options.draft, FRACTIONS["draft"]))
    }
    if options.torch:
        pairs["torch"] = (
            torch(options.target, max_draft_len=options.draft_len),
            torch(options.draft),
        )
    variants: dict[str, Callable[[Ids], Generated]] = {}
    for kind, pair in pairs.items():
        variants[f"{kind}, alone"] = partial(_generate_alone, pair[0], options.tokens)
        variants[f"{kind}, in rounds"] = partial(
            _generate_in_rounds, *pair, options.tokens, options.draft_len
        )
    want = [_generate_alone(target, options.tokens, prompt).tokens for prompt in prompts]
    _table(variants, prompts, want, options.requests)
    for pair in pairs.values():
        for engine in pair:
            engine.close()
    own = {
        "method": "draft_model",
        "model": str(options.draft),
        "num_speculative_tokens": options.draft_len,
    }
    target = vllm(options.target, sum(FRACTIONS.values()), speculative_config=own)
    _table(
        {"vLLM's own": partial(_generate_alone, target, options.tokens)},
        prompts,
        want,
        options.requests,
    )
    target.close()


def _table(
    variants: dict[str, Callable[[Ids], Generated]],
    prompts: Ids,
    want: list[list[int]],
    at_once: list[int],
) -> None:
    columns = (
        *("requests at once", "tokens/s", "ms per round", "of them in the target"),
        *("computed per round", "differ"),
    )
    table = Table("engines", *columns, box=None)
    for count in at_once:
        measure = {
            name: partial(_measure, variant, prompts[:count]) for name, variant in variants.items()
        }
        for name, turns in in_turns(measure, TURNS).items():
            seconds = median(turn.seconds for turn in turns)
            made = turns[-1].answers
            rounds = sum(one.rounds for one in made) / count
            target_ms = median(one.target_ms for turn in turns for one in turn.answers)
            computed = np.mean([one.computed for one in made])
            differ = sum(one.tokens != text for one, text in zip(made, want[:count], strict=True))
            table.add_row(
                *(name, str(count), f"{sum(len(one.tokens) for one in made) / seconds:.0f}"),
                *(f"{seconds / rounds * 1e3:.1f}", f"{target_ms:.1f}", f"{computed:.1f}"),
                f"{differ} of {count}",
            )
    Console().print(table)


def _measure(generate: Callable[[Ids], Generated], prompts: Ids, _turn: int) -> Measured:
    with ThreadPoolExecutor(len(prompts)) as pool:
        began = time.perf_counter()
        answers = list(pool.map(generate, prompts))
        return Measured(time.perf_counter() - began, answers)


def _generate_alone(engine: Engine, length: int, prompt: Ids) -> Generated:
    began = time.perf_counter()
    answer = GreedyCall(engine, prompt.tolist(), length).answer()
    milliseconds = (time.perf_counter() - began) * 1e3
    usage = answer.usage
    rounds = length - usage.accepted_tokens
    computed = usage.computed_tokens / rounds
    return Generated(list(answer.tokens), rounds, milliseconds / rounds, computed)


def _generate_in_rounds(
    target: Engine, draft: Engine, length: int, draft_len: int, prompt: Ids
) -> Generated:
    output = speculate(target, draft, prompt.tolist(), length, draft_len)
    target_ms = float(np.mean(output.target_seconds)) * 1e3
    computed = float(np.mean(output.computed_tokens))
    return Generated(output.tokens, len(output.target_seconds), target_ms, computed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--draft", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--python", default="python3", help="the Python that has vLLM")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--torch", action="store_true", help="also run Tandem's torch engine")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a CPU")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--arguments", type=json.loads, help="more of vLLM's, as a JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
