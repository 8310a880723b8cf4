"""Check how fast and how exact vLLM engines are on this machine, without Triton.

    python -m benchmarks.vllm_check --target /models/Qwen2.5-7B-Instruct \
        --draft /models/Qwen2.5-0.5B-Instruct

One engine verifies the drafts of another engine in rounds, and the output is compared token by
token with the target alone. Then the same target speculates inside vLLM with the same draft model.
In 16-bit types, the output of a batch can differ if two tokens are equally likely. The rows of the
target alone show how often that happens.
"""

from __future__ import annotations

import argparse
import json
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.engines.request import NO_IDS, EngineRequest, EngineResponse, Ids
from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings

PROMPT_TOKENS = 200
FRACTIONS = {"target": 0.75, "draft": 0.15}  # share of the GPU's memory


class Generated(NamedTuple):
    """One answer. computed: the average number of tokens that the target computed per round."""

    tokens: list[int]
    rounds: int
    computed: float


def main() -> None:
    options = _options()
    vocab_size = json.loads((options.target / "config.json").read_text())["vocab_size"]
    random = np.random.default_rng(1)
    most = max(options.requests)
    prompts = random.integers(10, min(vocab_size, 50_000), (most, PROMPT_TOKENS)).astype(np.int32)

    def engine(model: Path, fraction: float, **more: Any) -> VllmEngine:
        began = time.perf_counter()
        started = VllmEngine(
            VllmSettings(
                model=str(model),
                vocab_size=json.loads((model / "config.json").read_text())["vocab_size"],
                max_seq_len=PROMPT_TOKENS + options.tokens + 64,
                kv_cache_tokens=2 * most * (PROMPT_TOKENS + options.tokens + 64),
                max_batch_size=most,
                gpu_memory_fraction=fraction,
                python=options.python,
                threads=options.threads,
                dtype=options.dtype,
                enforce_eager=options.eager,
                tensor_parallel_size=options.tensor_parallel_size,
                arguments=options.arguments,
                **more,
            )
        )
        Console().print(f"{model.name} started in {time.perf_counter() - began:.0f} s")
        return started

    target = engine(options.target, FRACTIONS["target"], max_draft_len=options.draft_len)
    draft = engine(options.draft, FRACTIONS["draft"])
    ways: dict[str, Callable[[Ids], Generated]] = {
        "alone": lambda prompt: _alone(target, prompt, options.tokens),
        "in rounds": lambda prompt: _in_rounds(
            target, draft, prompt, options.tokens, options.draft_len
        ),
    }
    want = [_alone(target, prompt, options.tokens).tokens for prompt in prompts]
    _table(ways, prompts, want, options.requests)
    draft.close()
    target.close()
    own = {
        "method": "draft_model",
        "model": str(options.draft),
        "num_speculative_tokens": options.draft_len,
    }
    target = engine(options.target, sum(FRACTIONS.values()), speculative_config=own)
    ways = {"vLLM's own": lambda prompt: _alone(target, prompt, options.tokens)}
    _table(ways, prompts, want, options.requests)
    target.close()


def _table(
    ways: dict[str, Callable[[Ids], Generated]],
    prompts: Ids,
    want: list[list[int]],
    at_once: list[int],
) -> None:
    columns = ("requests at once", "tokens/s", "ms per round", "computed per round", "differ")
    table = Table("way", *columns, box=None)
    for name, generate in ways.items():
        for count in at_once:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(generate, prompts[:count]))  # warms up
                began = time.perf_counter()
                made = list(pool.map(generate, prompts[:count]))
                seconds = time.perf_counter() - began
            tokens = sum(len(one.tokens) for one in made)
            rounds = sum(one.rounds for one in made) / count
            computed = np.mean([one.computed for one in made])
            differ = sum(one.tokens != text for one, text in zip(made, want[:count], strict=True))
            table.add_row(
                *(name, str(count), f"{tokens / seconds:.0f}", f"{seconds / rounds * 1e3:.1f}"),
                *(f"{computed:.1f}", f"{differ} of {count}"),
            )
    Console().print(table)


def _alone(engine: VllmEngine, prompt: Ids, length: int) -> Generated:
    answer = _call(engine, prompt, length)
    usage = answer.usage
    rounds = length - usage.accepted_tokens
    return Generated(list(answer.tokens), rounds, usage.computed_tokens / rounds)


def _in_rounds(
    target: VllmEngine, draft: VllmEngine, prompt: Ids, length: int, draft_len: int
) -> Generated:
    tokens: list[int] = []
    computed = []
    while len(tokens) < length:
        context = np.append(prompt, np.array(tokens, np.int32))
        proposed = NO_IDS
        if count := min(draft_len, length - len(tokens) - 1):
            proposed = np.array(_call(draft, context, count).tokens, np.int32)
        answer = _call(target, context, len(proposed) + 1, proposed)
        computed.append(answer.usage.computed_tokens)
        tokens += answer.tokens
    return Generated(tokens, len(computed), float(np.mean(computed)))


def _call(engine: VllmEngine, context: Ids, length: int, draft: Ids = NO_IDS) -> EngineResponse:
    answers: queue.Queue[EngineResponse] = queue.Queue()
    engine.submit(
        EngineRequest("", context, length, draft_ids=draft, return_perf_metrics=True), answers.put
    )
    answer = answers.get()
    if answer.error:
        raise RuntimeError(answer.error)
    return answer


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--draft", type=Path, required=True, help="a checkpoint's folder")
    parser.add_argument("--python", default="python3", help="the Python that has vLLM")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of a CPU")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--arguments", type=json.loads, help="more of vLLM's, as a JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
