"""Write prompts with good and bad predictions of their outputs, for `tandem bench`.

    python -m benchmarks.predictions predictions.jsonl
    tandem bench --prompts predictions.jsonl --drafter prompt_lookup,hybrid

The demo's target continues its prompts greedily. A right prediction is that output. In a half-right
one, every second line comes from the output of another prompt. A useless one is that other output.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from benchmarks.demo_models.checkpoint import load_checkpoint
from benchmarks.demo_models.corpus import load_tokenizer
from benchmarks.demo_models.evaluate import continue_greedily, load_prompts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="JSONL file to write")
    parser.add_argument("--limit", type=int, default=8, help="prompts per kind (default: 8)")
    options = parser.parse_args()
    with options.file.open("w", encoding="utf-8") as file:
        for kind in ("completion", "edit"):
            prompts = [row["prompt"] for row in load_prompts(kind)[: options.limit]]
            file.writelines(json.dumps(row) + "\n" for row in _rows(kind, prompts))


def _rows(kind: str, prompts: list[str]) -> Iterator[dict[str, str]]:
    target, tokenizer = load_checkpoint("target"), load_tokenizer()
    outputs = [
        tokenizer.decode(continue_greedily(target, tokenizer.encode(prompt).ids))
        for prompt in prompts
    ]
    for prompt, output, other in zip(prompts, outputs, outputs[1:] + outputs[:1], strict=True):
        predictions = {
            "no": "",
            "right": output,
            "half-right": _mix(output, other),
            "useless": other,
        }
        for quality, prediction in predictions.items():
            name = f"{kind}, {quality} prediction"
            yield {"kind": name, "prompt": prompt, "prediction": prediction}


def _mix(text: str, other: str) -> str:
    """Return a text with every second line replaced by a line of the other text."""
    lines = zip_longest(text.splitlines(True)[::2], other.splitlines(True)[1::2], fillvalue="")
    return "".join(line for pair in lines for line in pair)


if __name__ == "__main__":
    main()
