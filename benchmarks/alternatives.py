"""How often the right token is among a draft's next guesses, where its first guess is wrong.

    python -m benchmarks.alternatives
    python -m benchmarks.alternatives --target TARGET --draft DRAFT --prompts my.jsonl

The target continues each prompt. Behind every position of its text, the token that it would say is
looked up among the draft's guesses, the likeliest first; the first guess is the draft token. The
share of misses whose token is among the next F is fitted by 1 - (F + 1)^-r: r is
`alternatives_exponent` of an emulated pair. In three ways to verify: greedy; by ids at temperature
1, where both draw with the same noise, and guesses are ranked under it; and by logits, where the
correction is drawn from what the target has more of than the draft.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).resolve().parents[1] / "demo"
DEPTHS = (1, 2, 3, 4, 7, 15, 31)
Ranks: TypeAlias = list[int]  # of a miss's right token: 1 is the draft's second guess


class Miss(NamedTuple):
    """What the draft drafted at some position, and what the target would say instead.

    guesses: [vocab_size], what the draft ranks next tokens by.
    """

    drafted: int
    right: int
    guesses: torch.Tensor

    @property
    def rank(self) -> int:
        """How many guesses but the drafted one it takes to have the right one."""
        better = self.guesses > self.guesses[self.right]
        better[self.drafted] = False
        return int(better.sum()) + 1


def greedy(p: torch.Tensor, q: torch.Tensor) -> Miss:
    """Logits [vocab_size] of target and draft to what each says."""
    return Miss(int(q.argmax()), int(p.argmax()), q)


def by_ids(p: torch.Tensor, q: torch.Tensor) -> Miss:
    """Both draw with the same noise."""
    noise = torch.empty_like(p).exponential_()
    guesses = q.softmax(-1) / noise
    return Miss(int(guesses.argmax()), int((p.softmax(-1) / noise).argmax()), guesses)


def by_logits(p: torch.Tensor, q: torch.Tensor) -> Miss:
    """Accept with min(1, p/q), correct from norm(max(0, p - q)): arXiv:2211.17192."""
    p, q = p.softmax(-1), q.softmax(-1)
    drafted = int(q.multinomial(1))
    if float(torch.rand(())) * q[drafted] <= p[drafted]:
        return Miss(drafted, drafted, q)
    return Miss(drafted, int((p - q).clamp(min=0).multinomial(1)), q)


WAYS = {"greedy": greedy, "by ids": by_ids, "by logits": by_logits}


class Pair:
    """Target, draft, and the tokenizer that they share."""

    def __init__(self, target: Path, draft: Path) -> None:
        self._target, self._draft = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
            for path in (target, draft)
        )
        self._tokenizer: Any = AutoTokenizer.from_pretrained(target)

    def logits(
        self, prompt: str, new_tokens: int, *, sample: bool
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield target's and draft's logits [vocab_size] behind each position of an answer."""
        ids = self._tokenizer(prompt, return_tensors="pt").input_ids
        text = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=sample,
            max_new_tokens=new_tokens,
            **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}),
        )
        first = ids.shape[1] - 1
        p, q = (model(text).logits[0, first:-1].float() for model in (self._target, self._draft))
        width = min(p.shape[-1], q.shape[-1])  # padding may differ
        yield from zip(p[:, :width], q[:, :width], strict=True)


def exponent(ranks: Ranks) -> float:
    """Fit 1 - (F + 1)^-r to the shares, by least squares of their logarithms."""
    pairs = [(math.log(depth + 1), -math.log(1 - _share(ranks, depth))) for depth in DEPTHS]
    return sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)


def _share(ranks: Ranks, depth: int) -> float:
    """Of misses, how many have their token among the next guesses; a little less than all."""
    return min(sum(rank <= depth for rank in ranks) / len(ranks), 1 - 1 / (2 * len(ranks)))


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=DEMO / "target")
    parser.add_argument("--draft", type=Path, default=DEMO / "draft")
    parser.add_argument("--prompts", type=Path, default=DEMO / "prompts.jsonl")
    parser.add_argument("--limit", type=int, default=24, help="prompts")
    parser.add_argument("--new-tokens", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    pair = Pair(options.target, options.draft)
    lines = options.prompts.read_text(encoding="utf-8").splitlines()[: options.limit]
    ranks: dict[str, Ranks] = {name: [] for name in WAYS}
    positions = dict.fromkeys(WAYS, 0)
    for line in track(lines):
        for sample, names in ((False, ["greedy"]), (True, ["by ids", "by logits"])):
            prompt = json.loads(line)["prompt"]
            for p, q in pair.logits(prompt, options.new_tokens, sample=sample):
                for name in names:
                    found = WAYS[name](p, q)
                    positions[name] += 1
                    if found.drafted != found.right:
                        ranks[name].append(found.rank)
    table = Table(title="the right token is among the next F guesses of a draft that was wrong")
    for heading in ("verified", "accepted", *(f"F = {depth}" for depth in DEPTHS), "r"):
        table.add_column(heading, justify="left" if heading == "verified" else "right")
    for name, of_way in ranks.items():
        shares = [f"{_share(of_way, depth):.2f}" for depth in DEPTHS]
        accepted = 1 - len(of_way) / positions[name]
        table.add_row(name, f"{accepted:.2f}", *shares, f"{exponent(of_way):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
