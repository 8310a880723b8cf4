"""Reference outputs: an inflated pair must generate the same tokens as the demo pair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.inflated.calls import say
from benchmarks.inflated.checkpoint import dtype_kept
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


@dataclass(frozen=True)
class Mismatch:
    """The first difference in an output.

    position: index of the token. gap: logit of the expected token minus logit of the actual token.
    """

    position: int
    gap: float


def expected_texts(prompts: int, tokens: int) -> list[Expected]:
    """Return the outputs of the demo's target in float32 on the CPU, for the first prompts."""
    tokenizer = load_tokenizer()
    asked = [tokenizer.encode(row["prompt"]).ids for row in load_prompts()[:prompts]]
    with closing(TorchEngine(demo_settings("target", device="cpu"), Path())) as engine:
        return [Expected(tuple(ids), tuple(say(engine, ids, tokens))) for ids in asked]


def demo_settings(role: str, **settings: Any) -> TorchSettings:
    """Return the engine settings for a model of the demo pair. role: `target` or `draft`."""
    return TorchSettings(
        checkpoint=str(DEMO / role),
        max_seq_len=MAX_SEQ_LEN,
        **{"kv_cache_tokens": 16 * MAX_SEQ_LEN, "max_draft_len": 16, **settings},
    )


def compared(
    texts: Sequence[Expected], said: Sequence[Sequence[int]], settings: TorchSettings
) -> dict[str, object]:
    """Count the outputs that differ, and the outputs whose difference rounding can't explain."""
    found = [first_mismatch(text, tokens) for text, tokens in zip(texts, said, strict=True)]
    gaps = [mismatch.gap for mismatch in found if mismatch]
    wrong = sum(gap > TIES[dtype_kept(settings)] for gap in gaps)
    widest = max(gaps, default=0.0)
    return {"texts": len(texts), "differ": len(gaps), "wrong": wrong, "widest_gap": widest}


def first_mismatch(expected: Expected, said: Sequence[int]) -> Mismatch | None:
    """Return the first difference from the expected tokens; `said` may be shorter."""
    for i, (want, got) in enumerate(zip(expected.text, said, strict=False)):
        if want != got:
            return Mismatch(i, _gap([*expected.prompt, *expected.text[:i]], want, got))
    return None


def _gap(ids: list[int], want: int, got: int) -> float:
    """Return logit of ``want`` - logit of ``got`` for the next token after ids, in float32."""
    with torch.inference_mode():
        row = load_checkpoint("target")(torch.tensor([ids])).logits[0, -1]
    return float(row[want] - row[got]) if got < len(row) else float("inf")
