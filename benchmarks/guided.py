"""Compare guided answers (JSON by a schema) with free ones, with drafts and without.

    python -m benchmarks.guided
    python -m benchmarks.guided --model .venv/chat/SmolLM2-135M-Instruct.Q4_1.gguf

The ways answer in turns on one server. Figures are medians over the prompts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.turns import in_turns
from tandem.contract import entry as tensors
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


@dataclass(frozen=True)
class AnswerWay:
    """How to answer. schema: None leaves the answer free."""

    name: str
    drafter: str
    schema: str | None = None


class Figures(NamedTuple):
    """Figures of one answer."""

    tokens_per_second: float
    tokens: int
    rounds: int
    forced_tokens: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="as of `tandem up` (default: the demo pair)")
    parser.add_argument("--drafter", help="default: draft_model, or prompt_lookup with --model")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()
    if options.model is None:
        planned, drafter = deployment.load(EMBEDDED), "draft_model"
    else:
        checkpoint = model_named(options.model).checkpoint()
        planned, drafter = deployment.for_checkpoints(checkpoint, None), "prompt_lookup"
    found = _measured(planned, options.drafter or drafter, options)
    base = _median(found["guided"], "tokens_per_second")
    table = Table("way", "tokens/s", "of guided", "tokens", "rounds", "forced tokens")
    for name, figures in found.items():
        rate = _median(figures, "tokens_per_second")
        counts = (_median(figures, field) for field in ("tokens", "rounds", "forced_tokens"))
        table.add_row(name, f"{rate:.0f}", f"{rate / base:.2f}x", *(f"{c:.0f}" for c in counts))
    Console().print(table)


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
    found: dict[str, list[Figures]] = {}
    with serving(planned) as server, Client(server.grpc_url) as client:
        for n in range(options.prompts):
            prompt = PROMPT.format(name=NAMES[n % len(NAMES)], count=n % 8 + 2)

            def answer(way: AnswerWay, _: int, prompt: str = prompt) -> Figures:
                return _figures(client, way, prompt, options.max_tokens)

            ways = {way.name: partial(answer, way) for way in _ways(drafter)}
            for name, figures in in_turns(ways, options.turns).items():
                found.setdefault(name, []).append(max(figures))
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


def _median(figures: list[Figures], field: str) -> float:
    return float(statistics.median(getattr(one, field) for one in figures))


if __name__ == "__main__":
    main()
