"""What other ways to look drafts up would be worth: greedy answers, replayed.

    python -m benchmarks.lookups
    python -m benchmarks.lookups --model .venv/chat/SmolLM2-135M-Instruct.Q4_1.gguf --again

A model answers prompts once, without drafts. Then each way drafts along these answers, as it would
have: a greedy answer does not depend on drafts, so the calls of the target can be counted without a
server. The ways are Tandem's prompt lookup, with longer n-grams, with the newest occurrence instead
of the oldest, and with a pool that the answers before have joined; and a drafter by suffix counts,
alone and with the texts before. The demo's model gets the demo's prompts; a chat model gets
conversations of the kind that repeats itself.

Source: Oliaro et al., "SuffixDecoding", arXiv:2411.04975.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.closed_loop import SETTINGS
from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence as Text
from tandem.lookup.pools import LookupPools
from tandem.tools.models.named import model_named

DEMO = Path(__file__).resolve().parents[1] / "demo"
LONGEST = 16  # tokens of a draft
DEPTH = 24  # of the suffixes that are counted
LEAST_PROBABILITY = 0.1  # of a draft by counts, up to any of its tokens
LEAST_TOKENS = 4  # of such a draft, however short the suffix that matched
POOL_TOKENS = 100_000
POOL = "the answers before"

SOURCE = """class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.items = []

    def add(self, item, count=1):
        for _ in range(count):
            self.items.append(item)

    def total(self):
        return sum(item.price for item in self.items)
"""
LISTING = """$ ls -l reports
-rw-r--r-- 1 ada users  4096 Jan 12 09:14 january.csv
-rw-r--r-- 1 ada users  8192 Feb 11 10:02 february.csv
-rw-r--r-- 1 ada users 12288 Mar 14 08:47 march.csv
"""
CONVERSATIONS = (
    f"Rename the method `add` to `put` and return the whole class.\n\n```python\n{SOURCE}```",
    f"Add a method `clear` to this class and return the whole class.\n\n```python\n{SOURCE}```",
    f"Write a docstring for each method of this class.\n\n```python\n{SOURCE}```",
    f"Here is what a command printed:\n\n{LISTING}\nRepeat it as a JSON list of files with sizes.",
    f"Here is what a command printed:\n\n{LISTING}\nWhich file is the largest? Quote its line.",
    (
        f"You are an agent. Each step is a line `Thought:` and a line `Action:`.\n\n{LISTING}\n"
        "Thought: I need the size of january.csv.\nAction: size reports/january.csv\n"
        "Observation: 4096\nThought: I need the size of february.csv.\n"
        "Action: size reports/february.csv\nObservation: 8192\nGo on until you know all sizes."
    ),
    (
        "Repeat this letter with the name Turing instead of Lovelace: Dear Ms Lovelace, your order "
        "4117 of two chairs and a lamp has left our house in Long Street. Yours, The Chair House"
    ),
    "Why is the sky blue? Answer in three sentences.",
)


class GreedyAnswer(NamedTuple):
    """Ids of a prompt and of the greedy answer to it."""

    prompt: list[int]
    answer: list[int]


class Lookup(Protocol):
    """Drafts what may follow a text that grows."""

    def begin(self, text: GreedyAnswer) -> None:
        """Take the prompt in."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens of the answer."""

    def draft(self, limit: int) -> list[int]:
        """Return at most so many tokens."""

    def end(self) -> None:
        """Note that the answer is complete."""


class Ngrams:
    """Tandem's own drafter. pools: its answers join one of them, and it copies from there."""

    def __init__(
        self, max_ngram_size: int, *, use_oldest: bool = True, pools: LookupPools | None = None
    ) -> None:
        self._max_ngram_size = max_ngram_size
        self._settings = replace(SETTINGS, lookup_uses_oldest=use_oldest)
        self._pools = pools

    def begin(self, text: GreedyAnswer) -> None:
        """Take the prompt in."""
        request = Request(
            np.array(text.prompt, np.int32),
            len(text.answer),
            prompt_lookup_num_tokens=LONGEST,
            max_matching_ngram_size=self._max_ngram_size,
            lookup_pool=POOL,
        )
        self._drafter = PromptLookup(request, self._settings, self._pools)
        self._text = Text(request)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens of the answer."""
        self._text.append(np.array(tokens, np.int32))

    def draft(self, limit: int) -> list[int]:
        """Return what followed the longest n-gram."""
        drafted: list[int] = self._drafter.look_up(self._text, limit).tokens.tolist()
        return drafted

    def end(self) -> None:
        """Let the answer join its pool."""
        self._drafter.completed(self._text)


Counts = defaultdict[tuple[int, ...], Counter[int]]


class SuffixCounts:
    """What followed each suffix how often, in this text and in those that `earlier` counts.

    A draft is what followed most often, token by token, behind the longest suffix that is known. It
    is no longer than that suffix, and ends where it has become improbable.
    """

    def __init__(self, earlier: Counts | None = None) -> None:
        self._counts: Counts = defaultdict(Counter) if earlier is None else earlier
        self._row: list[int] = []

    def begin(self, text: GreedyAnswer) -> None:
        """Count the prompt."""
        self.extend(text.prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens of the answer."""
        for token in tokens:
            for suffix in self._suffixes(self._row):
                self._counts[suffix][token] += 1
            self._row.append(token)

    def draft(self, limit: int) -> list[int]:
        """Return what followed most often."""
        row, matched = list(self._row), self._longest(self._row)
        drafted: list[int] = []
        probability = 1.0
        while len(drafted) < min(limit, max(LEAST_TOKENS, len(matched))):
            known = self._longest(row)
            if not known:
                break
            token, count = self._counts[known].most_common(1)[0]
            probability *= count / self._counts[known].total()
            if probability < LEAST_PROBABILITY:
                break
            drafted.append(token)
            row.append(token)
        return drafted

    def end(self) -> None:
        """All is counted already."""

    def _longest(self, row: list[int]) -> tuple[int, ...]:
        return next((s for s in self._suffixes(row) if s in self._counts), ())

    @staticmethod
    def _suffixes(row: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield those of up to `DEPTH` tokens, the longest first."""
        for size in range(min(DEPTH, len(row)), 0, -1):
            yield tuple(row[-size:])


class Outcome(NamedTuple):
    """Of one answer: tokens for each call of the target, and draft tokens in each."""

    tokens: float
    drafted: float


def main() -> None:
    """Answer, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a chat model that `tandem up` takes; the demo's without")
    parser.add_argument("--prompts", type=int, default=8, help="of each kind")
    parser.add_argument("--max-tokens", type=int, default=96, help="of each answer")
    parser.add_argument(
        "--again", action="store_true", help="ask all prompts twice; figures are of the second time"
    )
    options = parser.parse_args()
    for kind, texts in _texts(options).items():
        _print(kind, texts, before=texts if options.again else [])


def _texts(options: argparse.Namespace) -> dict[str, list[GreedyAnswer]]:
    """Return greedy answers by kind of prompt."""
    model, max_tokens = options.model, options.max_tokens
    folder = DEMO / "target" if model is None else model_named(model).checkpoint()
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "tokenizer" if model is None else folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts: dict[str, list[GreedyAnswer]] = {}
    for kind, ids in track(list(_prompts(model, tokenizer)), transient=True):
        if len(texts.get(kind, [])) == options.prompts:
            continue
        prompt = torch.tensor([ids])
        whole = network.generate(
            prompt,
            do_sample=False,
            max_new_tokens=max_tokens,
            attention_mask=torch.ones_like(prompt),
        )[0].tolist()
        texts.setdefault(kind, []).append(GreedyAnswer(ids, whole[len(ids) :]))
    return texts


def _prompts(model: str | None, tokenizer: AutoTokenizer) -> Iterator[tuple[str, list[int]]]:
    if model is not None:
        for content in CONVERSATIONS:
            messages = [{"role": "user", "content": content}]
            made = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            yield "chat", tokenizer.encode(made, add_special_tokens=False)
        return
    for line in (DEMO / "prompts.jsonl").read_text().splitlines():
        prompt = json.loads(line)
        yield prompt["kind"], tokenizer.encode(prompt["prompt"])


def _ways() -> dict[str, Callable[[], Lookup]]:
    earlier: Counts = defaultdict(Counter)
    pools = [LookupPools(POOL_TOKENS) for _ in range(2)]
    return {
        "prompt lookup, n-grams of 2 (default)": lambda: Ngrams(2),
        "n-grams of up to 4": lambda: Ngrams(4),
        "n-grams of up to 24": lambda: Ngrams(24),
        "n-grams of up to 24, newest first": lambda: Ngrams(24, use_oldest=False),
        "n-grams of 2, and a pool": lambda: Ngrams(2, pools=pools[0]),
        "n-grams of up to 24, newest first, and a pool": lambda: Ngrams(
            24, use_oldest=False, pools=pools[1]
        ),
        "suffix counts": SuffixCounts,
        "suffix counts, texts before too": lambda: SuffixCounts(earlier),
    }


def _print(kind: str, texts: list[GreedyAnswer], before: list[GreedyAnswer]) -> None:
    """Print what each way earns along texts, behind others of which nothing is told."""
    table = Table("way", "tokens per call", "of default", "drafted per call", title=kind)
    base = 0.0
    for name, make in _ways().items():
        outcomes = [_replayed(make(), text) for text in [*before, *texts]][len(before) :]
        tokens = statistics.fmean(outcome.tokens for outcome in outcomes)
        base = base or tokens
        drafted = statistics.fmean(outcome.drafted for outcome in outcomes)
        table.add_row(name, f"{tokens:.2f}", f"{tokens / base:.2f}x", f"{drafted:.1f}")
    Console().print(table)


def _replayed(lookup: Lookup, text: GreedyAnswer) -> Outcome:
    """Draft along an answer that is known."""
    lookup.begin(text)
    left, calls, drafted = text.answer, 0, 0
    while left:
        draft = lookup.draft(min(LONGEST, len(left) - 1))
        accepted = next((i for i, d in enumerate(draft) if d != left[i]), len(draft))
        calls, drafted = calls + 1, drafted + len(draft)
        lookup.extend(left[: accepted + 1])
        left = left[accepted + 1 :]
    lookup.end()
    return Outcome(len(text.answer) / calls, drafted / calls)


if __name__ == "__main__":
    main()
