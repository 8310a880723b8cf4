"""The texts that an inflated pair must say: those of the demo pair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_calls import say
from tandem.demo.checkpoint import load_checkpoint
from tandem.demo.evaluate import load_prompts
from tandem.demo.tokens import DEMO, load_tokenizer
from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

MAX_SEQ_LEN = 1024
# FlashAttention 2 reads pages of a multiple of 256 tokens in place.
PAGED: dict[str, Any] = {"paged_kv_cache": True, "kv_block_tokens": 256}
# Between the best two logits of the demo's target in float32: what rounding may turn round.
TIES = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.4}


@dataclass(frozen=True)
class Expected:
    """A prompt and the demo target's own greedy text behind it."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]


@dataclass(frozen=True)
class Mismatch:
    """Where a text first differs from what was expected, and how near the two best tokens are."""

    position: int
    gap: float


def expected_texts(prompts: int, tokens: int) -> list[Expected]:
    """Return what the demo's target says in float32 on the CPU."""
    tokenizer = load_tokenizer()
    asked = [tokenizer.encode(row["prompt"]).ids for row in load_prompts()[:prompts]]
    with closing(TorchEngine(demo_settings("target", device="cpu"), Path())) as engine:
        return [Expected(tuple(ids), tuple(say(engine, ids, tokens))) for ids in asked]


def demo_settings(role: str, **settings: Any) -> TorchSettings:
    """Settings of an engine on one of the demo pair."""
    return TorchSettings(
        checkpoint=str(DEMO / role),
        max_seq_len=MAX_SEQ_LEN,
        **{"kv_cache_tokens": 16 * MAX_SEQ_LEN, "max_draft_len": 16, **settings},
    )


def first_mismatch(expected: Expected, said: Sequence[int]) -> Mismatch | None:
    """Compare a text, of at most the expected length, token for token."""
    for i, (want, got) in enumerate(zip(expected.text, said, strict=False)):
        if want != got:
            return Mismatch(i, _gap([*expected.prompt, *expected.text[:i]], want, got))
    return None


def _gap(ids: list[int], want: int, got: int) -> float:
    """How much more the demo's target likes one next token than another."""
    with torch.inference_mode():
        row = load_checkpoint("target")(torch.tensor([ids])).logits[0, -1]
    return float(row[want] - row[got]) if got < len(row) else float("inf")
