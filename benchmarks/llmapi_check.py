"""Check on a GPU whether the installed TensorRT-LLM behaves as `kind: llmapi` expects.

    python -m benchmarks.llmapi_check --model /models/Llama-3.1-8B-Instruct --speculative-config \
        '{"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 2}'

Triton isn't needed. Tandem relies on the behavior in the first rows, which should all be "yes". The
last rows are inputs that Tandem rejects because TensorRT-LLM 1.2.1 ignores them; "yes" means that
this version supports them. In 16-bit types, speculation can change a greedy output if two tokens
are almost equally likely.
"""

from __future__ import annotations

import argparse
import json
import queue
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.engines.engine import EngineRequest, EngineResponse, SamplingParams, Words
from tandem.engines.llmapi.arguments import NO_END, llm_arguments
from tandem.engines.llmapi.engine import LlmApiEngine
from tandem.engines.llmapi.settings import LlmApiSettings
from tandem.tools.profiles.checkpoint import read_checkpoint

TOKENS = 64  # tokens per output
MAX_SEQ_LEN = 1024
CYCLE = 8  # prompts repeat cycles of this length, so that prompt lookup finds drafts
PROMPTS = 8
Row = tuple[str, bool, str]


def main() -> None:
    options = _options()
    vocab_size = read_checkpoint(options.model).vocab_size
    random = np.random.default_rng(1)
    cycles = random.integers(10, min(vocab_size, 50_000), (PROMPTS, CYCLE)).astype(np.int32)
    prompts = np.tile(cycles, 8)

    def settings(speculative_config: dict[str, Any] | None, *adapters: str) -> LlmApiSettings:
        return LlmApiSettings(
            model=str(options.model),
            vocab_size=vocab_size,
            max_seq_len=MAX_SEQ_LEN,
            kv_cache_tokens=PROMPTS * MAX_SEQ_LEN,
            max_batch_size=PROMPTS,
            tensor_parallel_size=options.tensor_parallel_size,
            speculative_config=speculative_config,
            llm_args=options.llm_args,
            lora_adapters=adapters,
        )

    package = import_module("tensorrt_llm")
    api = import_module("tensorrt_llm.llmapi.llm_args")
    baseline = LlmApiEngine(settings(None), package)
    expected = [_call(baseline, prompt) for prompt in prompts]
    _show("baseline", check_assumptions(baseline, prompts, expected))
    baseline.close()
    engine = LlmApiEngine(settings(options.speculative_config), package)
    _show("with speculation", check_assumptions(engine, prompts, expected))
    engine.close()
    llm = package.LLM(**llm_arguments(settings(options.speculative_config), api))
    prompt = prompts[0].tolist()
    _show("rejected inputs", check_rejected_inputs(llm, package.SamplingParams, prompt))
    llm.shutdown()
    if options.lora_adapter is None:
        return
    adapted: list[EngineResponse] = []  # the baseline's
    for title, config in (("baseline", None), ("with speculation", options.speculative_config)):
        engine = LlmApiEngine(settings(config, str(options.lora_adapter)), package)
        answers = [_call(engine, prompt, lora_task_id=1) for prompt in prompts]
        adapted = adapted or answers
        _show(f"adapter, {title}", check_adapter(engine, prompts, expected, answers, adapted))
        engine.close()


def check_adapter(
    engine: LlmApiEngine,
    prompts: np.ndarray[Any, Any],
    expected: list[EngineResponse],
    answers: list[EngineResponse],
    adapted: list[EngineResponse],
) -> Iterator[Row]:
    """Yield a row for each behavior of a LoRA adapter that the loop relies on.

    answers: the engine's first calls, all with the adapter. expected, adapted: the baseline's
    answers without and with the adapter.
    """

    def count_different(some: list[EngineResponse], others: list[EngineResponse]) -> int:
        return sum(a.tokens != b.tokens for a, b in zip(some, others, strict=True))

    def count_reused_blocks(some: list[EngineResponse]) -> int:
        return sum(answer.usage.reused_blocks for answer in some)

    plain = [_call(engine, prompt) for prompt in prompts]
    again = [_call(engine, prompt, lora_task_id=1) for prompt in prompts]
    count = count_different(answers, expected)
    yield "the adapter changes the output", count > 0, f"{count} of {PROMPTS}"
    count = count_different(answers, adapted)
    yield "greedy output equals the baseline's with it", not count, f"{count} differ"
    count = count_different(plain, expected)
    yield "calls without it have the base model's output", not count, f"{count} differ"
    count = count_reused_blocks(plain)
    yield "calls without it reuse none of its KV blocks", not count, f"{count}"
    count = count_reused_blocks(again)
    yield "calls with it reuse its KV blocks", count > 0, f"{count}"
    count = count_different(again, answers)
    yield "reused KV blocks don't change the output", not count, f"{count} differ"


def check_assumptions(
    engine: LlmApiEngine, prompts: np.ndarray[Any, Any], expected: list[EngineResponse]
) -> Iterator[Row]:
    """Yield a row for each behavior that the loop relies on: name, whether it holds, details."""
    prompt, output = prompts[0], expected[0].tokens
    began = time.perf_counter()
    answers = [_call(engine, each) for each in prompts]
    seconds = time.perf_counter() - began
    different = sum(a.tokens != b.tokens for a, b in zip(answers, expected, strict=True))
    rate = f"{PROMPTS * TOKENS / seconds:.0f} tokens/s, one after the other"
    yield "greedy output equals the baseline's", not different, f"{different} differ; {rate}"
    usage = answers[0].usage
    drafts = f"{usage.accepted_tokens} of {usage.draft_tokens} draft tokens accepted"
    drafted = usage.draft_tokens > 0 or not engine.capabilities.drafts_itself
    yield "statistics report drafts", drafted, drafts
    end = output[TOKENS // 2]
    ended = _call(engine, prompt, end_id=end).tokens
    yield "an end token ends the output", ended == output[: output.index(end)], f"{len(ended)}"
    yield "without an end token, none ends it", len(answers[0].tokens) == TOKENS, ""
    stop = Words.of((end,))
    stopped = _call(engine, prompt, stop_words=stop).tokens
    yield "a stop word stays at the end", stopped == output[: output.index(end) + 1], ""
    longer = SamplingParams(top_k=1, min_tokens=TOKENS)
    kept = _call(engine, prompt, end_id=end, sampling=longer).tokens
    yield "min_tokens holds at every position", len(kept) == TOKENS and end not in kept, ""
    banned = SamplingParams(top_k=1, bad_words=Words.of((end,)))
    clean = _call(engine, prompt, sampling=banned).tokens
    yield "a bias bans a token at every position", end not in clean, ""
    log_probs = _call(engine, prompt, return_log_probs=True).log_probs
    count = 0 if log_probs is None else len(log_probs)
    yield "each token has a log-probability", count == TOKENS, f"{count} of {TOKENS}"
    seconds = _seconds_to_stop(engine, prompt)
    yield "a stopped call ends within 0.1 s", seconds < 0.1, f"{seconds * 1e3:.0f} ms"


def check_rejected_inputs(llm: Any, make: Any, prompt: list[int]) -> Iterator[Row]:
    """Yield a row for each rejected input, with whether it has an effect.

    make: TensorRT-LLM's SamplingParams.
    """

    def output(**params: Any) -> list[int]:
        given = make(end_id=NO_END, max_tokens=TOKENS, detokenize=False, **params)
        return list(llm.generate(prompt, given).outputs[0].token_ids)

    def row(name: str, *, holds: bool) -> Row:
        return name, holds, ""

    greedy = output(top_k=1)
    seeded = {"temperature": 1.0, "seed": 7}
    yield row("seed", holds=output(**seeded) == output(**seeded) != greedy)
    yield row("min_p", holds=output(temperature=1.0, min_p=1.0) == greedy)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        yield row(name, holds=output(top_k=1, **{name: 1.9}) != greedy)
    yield row("bad_token_ids", holds=greedy[1] not in output(top_k=1, bad_token_ids=[greedy[1]]))


def _seconds_to_stop(engine: LlmApiEngine, prompt: np.ndarray[Any, Any]) -> float:
    answers: queue.Queue[EngineResponse] = queue.Queue()
    length = MAX_SEQ_LEN - len(prompt)
    engine.submit(EngineRequest("stopped", prompt, length, streaming=True), answers.put)
    answers.get()
    began = time.perf_counter()
    engine.stop("stopped")
    while not answers.get().final:
        pass
    return time.perf_counter() - began


def _call(engine: LlmApiEngine, prompt: np.ndarray[Any, Any], **more: Any) -> EngineResponse:
    answers: queue.Queue[EngineResponse] = queue.Queue()
    engine.submit(EngineRequest("", prompt, TOKENS, return_perf_metrics=True, **more), answers.put)
    answer = answers.get()
    if answer.error:
        raise RuntimeError(answer.error)
    return answer


def _show(title: str, rows: Iterator[Row]) -> None:
    table = Table(title, "", "", box=None)
    for name, holds, details in rows:
        table.add_row(name, "yes" if holds else "no", details)
    Console().print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument(
        "--speculative-config", type=json.loads, required=True, help="a JSON object"
    )
    parser.add_argument(
        "--lora-adapter", type=Path, help="PEFT folder of a LoRA adapter (default: none)"
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--llm-args", type=json.loads, help="more arguments of LLM(), as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
