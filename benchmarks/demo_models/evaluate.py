"""Measure the demo pair: `python -m benchmarks.demo_models.evaluate [quality|speed|generate]`.

`speed` and `generate` time single tokens, so run them on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from transformers import DynamicCache

from benchmarks.demo_models.checkpoint import load_checkpoint
from benchmarks.demo_models.corpus import DEMO, load_corpus, load_tokenizer
from benchmarks.demo_models.train import validation_loss

DRAFT_LEN = 4
NEW_TOKENS = 128
console = Console(soft_wrap=True)


def rounds(text: Sequence[int], guesses: Sequence[int], draft_len: int) -> list[int]:
    """Return the number of tokens that each round of greedy decoding emits, for the output `text`.

    `guesses[i]` is the draft's greedy token after the context before `text[i]`. One draft pass over
    the finished text yields all guesses, because every accepted token has the same context
    there as in decoding.

    >>> rounds([5, 6, 7, 8, 9], guesses=[5, 6, 0, 8, 9], draft_len=4)
    [3, 2]
    """
    emitted: list[int] = []
    position = 0
    while position < len(text):
        drafted = min(draft_len, len(text) - position - 1)
        accepted = 0
        while accepted < drafted and guesses[position + accepted] == text[position + accepted]:
            accepted += 1
        emitted.append(accepted + 1)
        position += accepted + 1
    return emitted


def repeated_share(text: Sequence[int], n: int = 8) -> float:
    """Return the share of n-grams that occurred earlier in `text`; near 1 if the text repeats."""
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def load_prompts(kind: str = "completion") -> list[dict[str, str]]:
    """Return the shipped prompts of a kind, in order."""
    lines = (DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for line in lines if (row := json.loads(line))["kind"] == kind]


def continue_greedily(target: Any, prompt: list[int], **options: Any) -> list[int]:
    """Return the target's greedy continuation of `prompt`, up to 128 tokens."""
    ids = torch.tensor([prompt])
    out = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        **options,
    )
    return list(out[0, len(prompt) :].tolist())


@torch.no_grad()
def shares(target: Any, draft: Any, prompt: list[int], text: list[int]) -> tuple[list[int], float]:
    """Return the draft's greedy guess for each token of `text`, and the mean overlap.

    The overlap of the target's and the draft's probabilities is sum(min(p, q)).
    """
    ids, first = torch.tensor([prompt + text]), len(prompt) - 1
    p, q = (model(ids).logits[0, first:-1].softmax(-1) for model in (target, draft))
    return q.argmax(-1).tolist(), torch.minimum(p, q).sum(-1).mean().item()


def quality(limit: int) -> None:
    """Print tokens per round, overlap and repetition on prompts, and losses on held-out files."""
    target, draft, tokenizer = load_checkpoint("target"), load_checkpoint("draft"), load_tokenizer()
    held_out = load_corpus().held_out
    for name, model in (("target", target), ("draft", draft)):
        console.print(f"{name}: held-out loss {validation_loss(model, held_out):.3f} nats/token")
        model.eval()
    shown: list[tuple[float, float]] = []  # repeated share, tokens per round
    held: list[tuple[float, float]] = []
    overlaps = []
    for prompt in load_prompts()[:limit]:
        ids = tokenizer.encode(prompt["prompt"]).ids
        text = continue_greedily(target, ids)
        guesses, overlap = shares(target, draft, ids, text)
        emitted = rounds(text, guesses, DRAFT_LEN)
        group = shown if prompt["id"].startswith("show") else held
        group.append((repeated_share(text), sum(emitted) / len(emitted)))
        overlaps.append(overlap)
    least_repetitive = sorted(held)[: len(held) // 2]
    groups = {"held out": held, "held out, least loops": least_repetitive, "shown": shown}
    for name, group in groups.items():
        if len(group) < 2:
            continue
        repeats, lengths = zip(*group, strict=True)
        console.print(f"{name}: tokens per round at draft_len {DRAFT_LEN}: {_spread(lengths)}")
        console.print(f"{name}: repeated 8-grams of {NEW_TOKENS} tokens: {_spread(repeats)}")
    console.print(f"overlap sum(min(p, q)) along the greedy texts: {_spread(overlaps)}")


def speed() -> None:
    """Print the milliseconds of a forward pass in float32 with 128 tokens in the KV cache."""
    target, draft = load_checkpoint("target"), load_checkpoint("draft")
    passes = [
        ("target decodes 1", target, 1),
        ("target verifies 5", target, 5),
        ("target verifies 9", target, 9),
        ("draft decodes 1", draft, 1),
    ]
    for title, model, tokens in passes:
        times = _milliseconds(model, tokens)
        console.print(
            f"{title}: median {statistics.median(times):.2f} ms, least {min(times):.2f} ms"
        )


def generate(limit: int) -> None:
    """Print tokens per second of transformers: plain, assisted, and with prompt lookup."""
    target, draft, tokenizer = load_checkpoint("target"), load_checkpoint("draft"), load_tokenizer()
    draft.generation_config.num_assistant_tokens = DRAFT_LEN
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "assisted": {"assistant_model": draft},
        "prompt lookup": {"prompt_lookup_num_tokens": DRAFT_LEN},
    }
    prompts = [tokenizer.encode(p["prompt"]).ids for p in load_prompts()[:limit]]
    seconds = dict.fromkeys(ways, 0.0)
    texts: dict[str, list[list[int]]] = {name: [] for name in ways}
    # The variants alternate per prompt, so that noise affects all equally.
    for ids, (name, options) in itertools.product([prompts[0], *prompts], ways.items()):
        start = time.perf_counter()
        texts[name].append(continue_greedily(target, ids, **options))
        seconds[name] += time.perf_counter() - start
        if len(texts[name]) == 1:
            seconds[name] = 0.0  # the first pass over the first prompt only warms up
    for name in ways:
        rate = sum(map(len, texts[name][1:])) / seconds[name]
        same = sum(map(list.__eq__, texts[name][1:], texts["plain"][1:]))
        console.print(f"{name}: {rate:.0f} tokens/s, {same} of {len(prompts)} texts equal to plain")


@torch.no_grad()
def _milliseconds(model: Any, tokens: int, context: int = 128, repeats: int = 200) -> list[float]:
    cache = DynamicCache(config=model.config)
    vocabulary = model.config.vocab_size
    model(torch.randint(vocabulary, (1, context)), past_key_values=cache)
    ids = torch.randint(vocabulary, (1, tokens))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model(ids, past_key_values=cache)
        times.append((time.perf_counter() - start) * 1e3)
        cache.crop(-tokens)
    return times


def _spread(values: Sequence[float]) -> str:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return (
        f"mean {statistics.mean(values):.3f}, median {statistics.median(values):.3f}, "
        f"10th to 90th percentile {tenths[0]:.3f} to {tenths[-1]:.3f} (n = {len(values)})"
    )


def main() -> None:
    ways: dict[str, Callable[[int], None]] = {
        "quality": quality,
        "speed": lambda _: speed(),
        "generate": generate,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=ways)
    parser.add_argument("--prompts", type=int, default=1000, help="use only the first N prompts")
    parser.add_argument(
        "--threads", type=int, default=2, help="torch threads (default %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ways[options.what](options.prompts)


if __name__ == "__main__":
    main()
