"""Measure the torch engine on a GPU, on the demo pair in the shapes of large models.

    python -m benchmarks.gpu --engine-only --minutes 4
    python -m benchmarks.gpu --like llama-3.1-8b 32b --output figures.jsonl
    python -m benchmarks.gpu --like small-target --draft small-draft --device cpu

No downloads are needed: the weights of the demo pair are enlarged on the device, and the outputs
stay the same.

- Engines alone: the duration of a step compared with reading the weights once, verification,
  batches, a minimal loop, and `generate` of transformers. Every output is compared with the demo
  pair's.
- Served by Triton: each drafter, acceptance by logits compared with ids, and concurrent requests
  with one or more loop processes. Every output is compared with the baseline's.

Results are written immediately. Measurements that don't fit into --minutes are listed as left out.
The exit status is 1 if a measurement fails or an output of the engines alone is wrong.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig

from benchmarks.gpu import engine_alone
from benchmarks.gpu.figures import FigureLog, TimeBudget
from benchmarks.gpu.served import measure_served
from benchmarks.inflated.checkpoint import load_inflated, weight_dtype, write_folder
from benchmarks.inflated.shapes import SHAPES
from benchmarks.inflated.texts import MAX_SEQ_LEN, PAGED, Expected, demo_settings, expected_texts
from tandem.demo.tokens import DEMO
from tandem.engines.torch.checkpoint import device_of, weight_bytes
from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

MS = 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    figures = FigureLog(options.output)
    budget = TimeBudget(figures, 60 * options.minutes)
    figures.head(device_of(options.device), minutes=options.minutes, paged=not options.contiguous)
    texts = expected_texts(options.prompts, options.tokens)
    for i, shape in enumerate(options.like):
        part = budget.part(1 / (len(options.like) - i))
        figures.add("pair", target=shape, draft=options.draft)
        part.run("pair", shape, partial(_measure_pair, part, shape, texts, options))
    return int(figures.num_failed > 0)


def _measure_pair(
    budget: TimeBudget, shape: str, texts: list[Expected], options: argparse.Namespace
) -> None:
    """Measure the draft and a target of this shape: the engines alone, then served by Triton."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            role: _settings(role, own, Path(folder), options)
            for role, own in (("target", shape), ("draft", options.draft))
        }
        alone = budget if options.engine_only else budget.part(0.4)
        alone.run("engines", "engines", lambda: _measure_alone(alone, settings, texts, options))
        _release_memory(device_of(options.device))
        if not options.engine_only:
            budget.run("served", "Triton", lambda: measure_served(budget, settings, texts, options))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine-only", action="store_true", help="without Triton")
    parser.add_argument("--minutes", type=float, default=8.5, help="for all measurements")
    parser.add_argument(
        "--like", choices=SHAPES, nargs="+", default=["llama-3.1-8b"], help="of the target"
    )
    parser.add_argument("--draft", choices=SHAPES, default="llama-3.2-1b", help="of the draft")
    parser.add_argument("--prompts", type=int, default=6, help="how many of the demo's")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--turns", type=int, default=5, help="of what is measured in turns")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64], help="of Triton")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 4], help="loop processes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch")
    parser.add_argument("--contiguous", action="store_true", help="no paged_kv_cache")
    parser.add_argument("--no-transformers", action="store_true", help="leave it out")
    parser.add_argument("--output", type=Path, help="a file for the figures, a line of JSON each")
    return parser.parse_args(arguments)


def _settings(role: str, shape: str, folder: Path, options: argparse.Namespace) -> TorchSettings:
    sequences = 64 if device_of(options.device).type == "cuda" else 16
    return demo_settings(
        str(write_folder(DEMO / role, SHAPES[shape], folder / role)),
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
        kv_cache_tokens=sequences * MAX_SEQ_LEN,
        **({} if options.contiguous else PAGED),
    )


def _measure_alone(
    budget: TimeBudget,
    settings: dict[str, TorchSettings],
    texts: list[Expected],
    options: argparse.Namespace,
) -> None:
    """Measure the engines in this process, then free their memory."""
    figures, device = budget.figures, device_of(options.device)
    rate = engine_alone.copy_bytes_a_second(device)
    figures.add("copy within the device", gigabytes_a_second=rate / 1e9)
    with ExitStack() as stack:
        engines = {
            role: stack.enter_context(closing(TorchEngine(own, Path(), load_inflated)))
            for role, own in settings.items()
        }
        for role, engine in engines.items():
            steps = partial(
                engine_alone.measure_steps,
                *(figures, role, engine, texts[0]),
                turns=options.turns,
                read_ms=MS * _bytes(settings[role]) / rate,
            )
            budget.run("steps", f"{role} steps", steps)
        for length in engine_alone.DRAFT_LENGTHS:
            loop = partial(
                engine_alone.measure_texts, figures, engines, settings["target"], texts, length
            )
            budget.run("texts", engine_alone.loop_name(length), loop)
    del engines, engine, steps, loop
    _release_memory(device)
    if not options.no_transformers:
        plain = partial(engine_alone.measure_transformers, figures, settings, texts)
        budget.run("transformers", "transformers", plain)


def _release_memory(device: torch.device) -> None:
    """Return freed memory to the device, because engines in other processes need it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _bytes(settings: TorchSettings) -> int:
    """Return the bytes of weights that a step reads: all weights except an untied embedding."""
    dtype = weight_dtype(settings)
    config = LlamaConfig.from_pretrained(settings.checkpoint)
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return weight_bytes(config, dtype) - looked_up * dtype.itemsize


if __name__ == "__main__":
    sys.exit(main())
