"""What a guide costs and what it earns: JSON by a schema, with drafts, without, and unguided.

    python -m benchmarks.guided
    python -m benchmarks.guided --model .venv/chat/SmolLM2-135M-Instruct.Q4_1.gguf
    python -m benchmarks.guided --masks

The ways answer in turns on one server; medians over the prompts. `--masks` needs no server: the
time of a round's masks, for the model's tokenizer and for a made-up one of 128,256 tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem.contract import entry as tensors
from tandem.guides.compiler import GuideCompiler
from tandem.guides.guide import Guide
from tandem.guides.matcher import GuideMatcher
from tandem.tools.client.client import Answer, Client, inputs_for
from tandem.tools.commands.options import EMBEDDED
from tandem.tools.models.named import model_named
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment
from tandem.tools.triton.serving import serving

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 24},
        "order_number": {"type": "integer", "minimum": 1, "maximum": 99999},
        "delivery_address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 24},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "postal_code"],
            "additionalProperties": False,
        },
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "article": {"enum": ["chair", "table", "lamp"]},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["article", "quantity"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 3,
        },
        "express": {"type": "boolean"},
    },
    "required": ["customer_name", "order_number", "delivery_address", "items", "express"],
    "additionalProperties": False,
}
FIXED = json.dumps(SCHEMA)
FLEXIBLE = json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": True}})
NAMES = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov")
PROMPT = (
    "An order as JSON. {name} of 12 Long Street, 50667, wants {count} chairs and a lamp, as "
    "order 4{count}17, by ordinary mail.\n"
)
LARGE_VOCABULARY = 128_256
ROWS = (1, 2, 4, 5, 8, 11)


@dataclass(frozen=True)
class AnswerWay:
    """How to answer. schema: None leaves the answer free."""

    name: str
    drafter: str
    schema: str | None = None


class Figures(NamedTuple):
    """Of one answer."""

    tokens_per_second: float
    tokens: int
    rounds: int
    forced_tokens: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model that `tandem up` takes; the demo's pair without")
    parser.add_argument("--drafter", help="draft_model with the demo's pair, else prompt_lookup")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--masks", action="store_true", help="only what masks cost")
    options = parser.parse_args()
    planned = _deployment(options.model)
    if not options.masks:
        drafter = options.drafter or ("prompt_lookup" if options.model else "draft_model")
        _print_ways(_measured(planned, drafter, options))
    _print_masks(planned)


def _deployment(model: str | None) -> Deployment:
    if model is None:
        return deployment.load(EMBEDDED)
    return deployment.for_checkpoints(model_named(model).checkpoint(), None)


def _ways(drafter: str) -> list[AnswerWay]:
    return [
        AnswerWay("free", "none"),
        AnswerWay("free, drafts", drafter),
        AnswerWay("guided", "none", FIXED),
        AnswerWay("guided, drafts", drafter, FIXED),
        AnswerWay("flexible whitespace", "none", FLEXIBLE),
        AnswerWay("flexible whitespace, drafts", drafter, FLEXIBLE),
    ]


def _measured(
    planned: Deployment, drafter: str, options: argparse.Namespace
) -> dict[str, list[Figures]]:
    """Return the figures of each way, by prompt: the fastest of its turns."""
    prompts = [
        PROMPT.format(name=NAMES[n % len(NAMES)], count=n % 8 + 2) for n in range(options.prompts)
    ]
    found: dict[str, list[Figures]] = {}
    with serving(planned) as server, Client(server.grpc_url) as client:
        for way in _ways(drafter):
            _figures(client, way, prompts[0], options.max_tokens)  # warms up, compiles the guide
        for prompt in track(prompts, transient=True):
            turns: dict[str, list[Figures]] = {}
            for _ in range(options.turns):
                for way in _ways(drafter):
                    figures = _figures(client, way, prompt, options.max_tokens)
                    turns.setdefault(way.name, []).append(figures)
            for name, of_prompt in turns.items():
                found.setdefault(name, []).append(max(of_prompt))
    return found


def _figures(client: Client, way: AnswerWay, prompt: str, max_tokens: int) -> Figures:
    asked: dict[Any, Any] = {tensors.DRAFTER: way.drafter}
    if way.schema is None:
        asked[tensors.END_ID] = -1  # it says as much as it may
    else:
        asked[tensors.GUIDED_DECODING_GUIDE_TYPE] = "json_schema"
        asked[tensors.GUIDED_DECODING_GUIDE] = way.schema
    answer = client.answer("bls_stream", inputs_for(prompt, max_tokens, asked, stream=False))
    rate = answer.num_tokens / answer.seconds
    return Figures(rate, answer.num_tokens, answer.totals.num_rounds, _forced(answer))


def _forced(answer: Answer) -> int:
    guide = (answer.statistics or {}).get("guide")
    return guide["num_forced_tokens"] if guide else 0


def _print_ways(found: Mapping[str, list[Figures]]) -> None:
    base = _median(found["guided"], "tokens_per_second")
    table = Table("way", "tokens/s", "of guided", "tokens", "rounds", "forced tokens")
    for name, figures in found.items():
        rate = _median(figures, "tokens_per_second")
        counts = (_median(figures, field) for field in ("tokens", "rounds", "forced_tokens"))
        table.add_row(name, f"{rate:.0f}", f"{rate / base:.2f}x", *(f"{c:.0f}" for c in counts))
    Console().print(table)


def _median(figures: list[Figures], field: str) -> float:
    return float(statistics.median(getattr(one, field) for one in figures))


def _print_masks(planned: Deployment) -> None:
    table = Table("vocabulary", *(f"{rows} rows" for rows in ROWS), title="ms of a round's masks")
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder)
        _large_tokenizer(planned.tokenizer.folder).save(str(large / "tokenizer.json"))
        size = planned.loop_settings().target.vocab_size
        for tokenizer, width in ((planned.tokenizer.folder, size), (large, LARGE_VOCABULARY)):
            compiler = GuideCompiler(tokenizer, width, planned.end_ids)
            spent = _mask_ms(compiler, planned.end_ids)
            table.add_row(f"{width:,}", *(f"{ms:.3f}" for ms in spent))
    Console().print(table)


def _mask_ms(compiler: GuideCompiler, end_ids: tuple[int, ...]) -> list[float]:
    """Return the median over the places of some answers, by number of rows."""
    guide = Guide("json_schema", FIXED)
    spent: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for seed in range(5):
        answer = list(_random_answer(compiler.matcher(guide, end_ids), end_ids, seed))
        matcher = compiler.matcher(guide, end_ids)
        for at, token in enumerate(answer):
            for rows in ROWS:
                draft = answer[at : at + rows - 1]
                began = time.perf_counter()
                matcher.walk(draft)
                if len(draft) == rows - 1:
                    spent[rows].append(1e3 * (time.perf_counter() - began))
            matcher.advance([token])
    return [statistics.median(spent[rows]) for rows in ROWS]


def _random_answer(matcher: GuideMatcher, ends: tuple[int, ...], seed: int) -> Iterator[int]:
    generator = np.random.default_rng(seed)
    while not matcher.complete:
        mask = matcher.walk([]).masks[0]
        legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(generator.choice(legal))
        if token in ends:
            return
        matcher.advance([token])
        yield token


def _large_tokenizer(folder: Path) -> Tokenizer:
    """Return one of bytes with the tokens of another and random joins of them."""
    given = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocabulary, merges = dict(given["vocab"]), [tuple(m) for m in given["merges"]]
    generator = random.Random(0)
    parts = [piece for piece in vocabulary if len(piece) <= 8]
    while len(vocabulary) < LARGE_VOCABULARY:
        pair = generator.choice(parts), generator.choice(parts)
        if "".join(pair) not in vocabulary:
            vocabulary["".join(pair)] = len(vocabulary)
            merges.append(pair)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


if __name__ == "__main__":
    main()
