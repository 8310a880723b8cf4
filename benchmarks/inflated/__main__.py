"""The torch engine at the shapes of large models, each text checked against the demo pair's own.

    python -m benchmarks.inflated --like llama-3.1-8b --draft llama-3.2-1b
    python -m benchmarks.inflated --like small-target --draft small-draft --prompts 4 --device cpu

No weights are needed: the demo pair is made larger on the device, and still says what it says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine_calls import SaidText, say, speculate
from benchmarks.inflated.checkpoint import load_inflated, write_folder
from benchmarks.inflated.shapes import SHAPES
from benchmarks.inflated.texts import (
    PAGED,
    TIES,
    Expected,
    Mismatch,
    demo_settings,
    expected_texts,
    first_mismatch,
)
from tandem.demo.tokens import DEMO
from tandem.engines.torch.checkpoint import device_of, dtype_of
from tandem.engines.torch.engine import TorchEngine


def main() -> None:
    """Make the pair, let it say every text, and exit with 1 where one is wrong."""
    options = _options()
    texts = expected_texts(options.prompts, options.tokens)
    table = Table("way", "tokens/s", "tokens a round", "texts", "ties", "wrong")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        target, draft = (
            stack.enter_context(closing(_engine(role, shape, Path(folder), options)))
            for role, shape in (("target", options.like), ("draft", options.draft))
        )
        for length in (0, *options.draft_len):
            began = time.perf_counter()
            said = [_answer(target, draft, text, length) for text in texts]
            seconds = time.perf_counter() - began
            wrong += _add_row(table, length, said, texts, seconds, options)
    Console().print(table)
    sys.exit(wrong > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--like", choices=SHAPES, default="llama-3.1-8b", help="of the target")
    parser.add_argument("--draft", choices=SHAPES, default="llama-3.2-1b", help="of the draft")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the demo's")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--draft-len", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--paged", action="store_true", help="keep the KV cache in pages of 256")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch")
    return parser.parse_args()


def _engine(role: str, shape: str, folder: Path, options: argparse.Namespace) -> TorchEngine:
    checkpoint = write_folder(DEMO / role, SHAPES[shape], folder / role)
    settings = demo_settings(
        str(checkpoint),
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
        **(PAGED if options.paged else {}),
    )
    began = time.perf_counter()
    engine = TorchEngine(settings, Path(), load_inflated)
    Console().print(f"{role}: {shape}, made and checked in {time.perf_counter() - began:.1f} s")
    return engine


def _answer(target: TorchEngine, draft: TorchEngine, text: Expected, draft_len: int) -> SaidText:
    if draft_len:
        return speculate(target, draft, text.prompt, len(text.text), draft_len)
    return SaidText(say(target, text.prompt, len(text.text)))


def _add_row(  # noqa: PLR0917
    table: Table,
    draft_len: int,
    said: list[SaidText],
    expected: list[Expected],
    seconds: float,
    options: argparse.Namespace,
) -> int:
    """Add a way's figures; return how many of its texts are wrong."""
    dtype = dtype_of(options.dtype, device_of(options.device))
    tie = TIES[dtype if isinstance(dtype, torch.dtype) else torch.bfloat16]
    found = [first_mismatch(e, text.tokens) for e, text in zip(expected, said, strict=True)]
    differ: list[Mismatch] = [mismatch for mismatch in found if mismatch]
    wrong = sum(mismatch.gap > tie for mismatch in differ)
    tokens, rounds = sum(len(text.tokens) for text in said), sum(text.rounds for text in said)
    table.add_row(
        f"draft_len {draft_len}" if draft_len else "target alone",
        f"{tokens / seconds:.0f}",
        f"{tokens / rounds:.2f}" if rounds else "-",
        str(len(said)),
        str(len(differ) - wrong),
        str(wrong),
    )
    for mismatch in differ:
        Console().print(f"differs at token {mismatch.position}, gap {mismatch.gap:.3f}")
    return wrong


if __name__ == "__main__":
    main()
