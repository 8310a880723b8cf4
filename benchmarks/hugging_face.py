"""Tandem beside Hugging Face's own speculation: same checkpoints, prompts and threads, one run.

    python -m benchmarks.hugging_face

Every prompt is answered by each way in turn; medians over the turns. Tandem's times include the
server and its hops. Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the engines: idle threads leave the cores

import torch
from rich.console import Console
from rich.table import Table

from tandem.contract import entry as tensors
from tandem.demo.checkpoint import load_checkpoint
from tandem.demo.evaluate import load_prompts
from tandem.demo.tokens import load_tokenizer
from tandem.tools.client.client import Client, inputs_for
from tandem.tools.commands.options import EMBEDDED
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROMPTS, TOKENS, TURNS, DRAFT_LEN = 16, 96, 3, 4
Answer = Callable[[str], int]  # answers a prompt; how many tokens it took


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(2)
    prompts = [row["prompt"] for row in load_prompts()][:PROMPTS]
    with _ways() as ways:
        for way in ways.values():
            way(prompts[0])  # warms up
        rates: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
        for _ in range(TURNS):
            for prompt in prompts:
                for name, way in ways.items():
                    rates[name].setdefault(prompt, []).append(_rate(way, prompt))
    _print(rates)


@contextmanager
def _ways() -> Iterator[dict[str, Answer]]:
    planned = deployment.load(EMBEDDED)
    target, draft, tokenizer = load_checkpoint("target"), load_checkpoint("draft"), load_tokenizer()
    draft.generation_config.num_assistant_tokens = DRAFT_LEN
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    hugging_face = partial(_hugging_face, target, tokenizer)
    with serving(planned) as server, Client(server.grpc_url) as client:
        ours = partial(_tandem, client)
        yield {
            "Tandem none": partial(ours, "none"),
            "Hugging Face plain": hugging_face,
            "Tandem draft_model": partial(ours, "draft_model"),
            "Hugging Face assisted": partial(hugging_face, assistant_model=draft),
            "Tandem prompt_lookup": partial(ours, "prompt_lookup"),
            "Hugging Face prompt lookup": partial(hugging_face, prompt_lookup_num_tokens=DRAFT_LEN),
        }


def _tandem(client: Client, drafter: str, prompt: str) -> int:
    inputs = inputs_for(prompt, TOKENS, {tensors.DRAFTER: drafter}, stream=False)
    return client.answer("bls_stream", inputs).num_tokens


def _hugging_face(target: Any, tokenizer: Any, prompt: str, **speculation: Any) -> int:
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=TOKENS,
        **speculation,
    )
    return int(output.shape[1] - ids.shape[1])


def _rate(way: Answer, prompt: str) -> float:
    began = time.perf_counter()
    tokens = way(prompt)
    return tokens / (time.perf_counter() - began)


def _print(rates: dict[str, dict[str, list[float]]]) -> None:
    table = Table("way", "tokens/s", "10-90 %")
    for name, by_prompt in rates.items():
        medians = sorted(statistics.median(turns) for turns in by_prompt.values())
        tenths = statistics.quantiles(medians, n=10, method="inclusive")
        table.add_row(
            name, f"{statistics.median(medians):.0f}", f"{tenths[0]:.0f}-{tenths[-1]:.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
