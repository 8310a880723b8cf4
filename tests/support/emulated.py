"""Emulated engines with a virtual clock, and functions to call them."""

from __future__ import annotations

from typing import Any

from engine_harness import VOCAB, Harness
from virtual_timer import VirtualTimer

from tandem.engines.emulated.engine import EmulatedEngine, Timer
from tandem.engines.emulated.settings import EmulatedSettings

ALPHA = 0.8
END = 1


def settings(**given) -> EmulatedSettings:
    """Return engine settings with a small vocabulary and steps that take no time."""
    small: dict[str, Any] = {
        "role": "target",
        "vocab_size": VOCAB,
        "low_id": 2,
        "high_id": VOCAB,
        "max_seq_len": 256,
        "kv_cache_tokens": 4096,
        "kv_block_tokens": 8,
        "max_draft_len": 16,
        "alpha": ALPHA,
        "end_id": END,
    }
    return EmulatedSettings(**(small | given))


def emulated(timer: Timer | None = None, **given) -> Harness:
    """Return an engine with a small vocabulary. timer: default a virtual clock."""
    return Harness(EmulatedEngine(settings(**given), timer or VirtualTimer()))


def pair(timer: Timer | None = None, **given) -> tuple[Harness, Harness]:
    """Return a draft and a target with the same language."""
    return emulated(timer, role="draft", **given), emulated(timer, role="target", **given)


def accepted(draft: Harness, target: Harness, ids, draft_len: int) -> int:
    """Return how many tokens of a greedy draft of ``draft_len`` tokens the target accepts."""
    drafts = draft.tokens(ids, draft_len)
    return target.call(ids, draft_len + 1, drafts=drafts).last.usage.accepted_tokens
