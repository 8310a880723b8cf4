"""Compare Tandem with speculation in transformers: same checkpoints, prompts and threads.

    python -m benchmarks.hugging_face

The variants alternate, and results are medians over the turns. Tandem's times include the server
and its inter-process overhead. Run the script on an otherwise idle machine.
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

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as in the engines: idle threads stop spinning

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.turns import in_turns, spread
from tandem.contract import entry as tensors
from tandem.demo.checkpoint import load_checkpoint
from tandem.demo.evaluate import load_prompts
from tandem.demo.tokens import load_tokenizer
from tandem.tools.client.client import Client, inputs_for
from tandem.tools.commands.options import EMBEDDED
from tandem.tools.profiles import deployment
from tandem.tools.triton.serving import serving

PROMPTS, TOKENS, TURNS, DRAFT_LEN = 16, 96, 3, 4
Answer = Callable[[str], int]  # answers a prompt and returns the number of tokens


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(2)
    prompts = [row["prompt"] for row in load_prompts()][:PROMPTS]
    medians: dict[str, list[float]] = {}
    with _ways() as ways:
        for prompt in prompts:
            rates = {name: partial(_rate, way, prompt) for name, way in ways.items()}
            for name, of_turns in in_turns(rates, TURNS).items():
                medians.setdefault(name, []).append(statistics.median(of_turns))
    table = Table("way", "tokens/s (10-90 %)")
    for name, by_prompt in medians.items():
        table.add_row(name, spread(by_prompt, 0))
    Console().print(table)


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


def _rate(way: Answer, prompt: str, _: int) -> float:
    began = time.perf_counter()
    tokens = way(prompt)
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
