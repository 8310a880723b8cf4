"""Reference outputs: an inflated pair must generate the same tokens as the demo pair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.calls import generate
from benchmarks.inflated.checkpoint import weight_dtype
from tandem.demo.checkpoint import load_checkpoint
from tandem.demo.evaluate import load_prompts
from tandem.demo.tokens import DEMO, load_tokenizer
from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

MAX_SEQ_LEN = 1024
# FlashAttention 2 reads pages in place if their size is a multiple of 256 tokens.
PAGED: dict[str, Any] = {"paged_kv_cache": True, "kv_block_tokens": 256}
# Largest gap between the best two logits (in float32) whose order rounding may reverse, by type.
TIES = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.4}


@dataclass(frozen=True)
class Expected:
    """The ids of a prompt, and of its greedy continuation by the demo's target."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]


def expected_texts(prompts: int, tokens: int) -> list[Expected]:
    """Return the outputs of the demo's target in float32 on the CPU, for the first prompts."""
    tokenizer = load_tokenizer()
    asked = [tokenizer.encode(row["prompt"]).ids for row in load_prompts()[:prompts]]
    with closing(TorchEngine(demo_settings("target", device="cpu"), Path())) as engine:
        return [Expected(tuple(ids), tuple(generate(engine, ids, tokens))) for ids in asked]


def demo_settings(role: str, **settings: Any) -> TorchSettings:
    """Return the engine settings for a model of the demo pair. role: `target` or `draft`."""
    return TorchSettings(
        checkpoint=str(DEMO / role),
        max_seq_len=MAX_SEQ_LEN,
        **{"kv_cache_tokens": 16 * MAX_SEQ_LEN, "max_draft_len": 16, **settings},
    )


def count_differences(
    texts: Sequence[Expected], outputs: Sequence[Sequence[int]], settings: TorchSettings
) -> dict[str, object]:
    """Count the outputs that differ, and the outputs whose difference rounding can't explain."""
    gaps = [
        gap
        for text, tokens in zip(texts, outputs, strict=True)
        if (gap := _first_gap(text, tokens)) is not None
    ]
    wrong = sum(gap > TIES[weight_dtype(settings)] for gap in gaps)
    widest = max(gaps, default=0.0)
    return {"texts": len(texts), "differ": len(gaps), "wrong": wrong, "widest_gap": widest}


def _first_gap(expected: Expected, output: Sequence[int]) -> float | None:
    """Return the gap at the first wrong token, or None if there is none. `output` may be shorter.

    The gap is the expected token's logit minus the actual token's, in float32.
    """
    for i, (want, got) in enumerate(zip(expected.text, output, strict=False)):
        if want != got:
            ids = [*expected.prompt, *expected.text[:i]]
            with torch.inference_mode():
                row = load_checkpoint("target")(torch.tensor([ids])).logits[0, -1]
            return float(row[want] - row[got]) if got < len(row) else float("inf")
    return None
