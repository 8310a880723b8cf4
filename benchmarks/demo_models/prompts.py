"""Write `prompts.jsonl`: `python -m benchmarks.demo_models.prompts`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.demo_models.corpus import DEMO, Document, documents, load_tokenizer

SHOWN = (
    (
        'def softmax(x, axis=-1):\n    """Compute the softmax of an array along an axis."""\n'
        "    x = np.asarray(x)\n"
    ),
    (
        'async def read_all(stream, limit=None):\n    """Read all data from a stream."""\n'
        "    chunks = []\n    while True:"
    ),
    (
        'def connected_components(G):\n    """Generate the connected components of an undirected '
        "graph.\n\n    Parameters\n    ----------\n"
    ),
    (
        "class LayerNorm(nn.Module):\n    def __init__(self, hidden_size, eps=1e-6):\n"
        '        """\n        LayerNorm without a bias\n        """\n        super().__init__()'
    ),
    ('class Event(BaseModel):\n    """One event of a stream."""\n\n    id: int\n    name: str\n'),
    (
        'class _Timer(Thread):\n    """Call a function after a number of seconds."""\n\n'
        "    def __init__(self, interval, function, args=None, kwargs=None):"
    ),
    (
        "class TokenClassificationModel(PreTrainedModel):\n    def __init__(self, config):\n"
        "        super().__init__(config)\n        self.num_labels = config.num_labels\n"
    ),
    (
        "class Point(NamedTuple):\n    x: float\n    y: float\n\n"
        '    def distance(self, other: "Point") -> float:'
    ),
)
EDITS = Path(__file__).with_name("edits.txt")
HELD_OUT = 52
MIN_TOKENS, MAX_TOKENS = 24, 160
START = re.compile(r"^(?:    )?(?:class|def) \w+", re.MULTILINE)
NATURAL_END = re.compile(r"[:,(\w\"')\]]\Z")


def excerpts(document: Document, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the first lines of each function and class in `document`, in random order."""
    rng = np.random.default_rng(len(document.text))
    for start in rng.permutation([m.start() for m in START.finditer(document.text)]).tolist():
        lines = document.text[start : start + 2000].split("\n")
        text = "\n".join(lines[: int(rng.integers(3, 14))]).rstrip()
        if NATURAL_END.search(text) and MIN_TOKENS <= len(tokenizer.encode(text).ids) <= MAX_TOKENS:
            yield text


def edits() -> list[str]:
    """Return the prompts of `edits.txt`, which %% separates: code to repeat with a change."""
    texts = EDITS.read_text(encoding="utf-8").split("%%\n")
    return [text[:-1] for text in texts]


def main() -> None:
    """Write the prompts; excerpts come from one file each, in the corpus's shuffled order."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    tokenizer = load_tokenizer()
    rows = [
        {"id": f"show-{i}", "kind": "completion", "prompt": text} for i, text in enumerate(SHOWN)
    ]
    held_out = [d for d in documents() if d.split == "held_out"]
    for document in held_out:
        if len(rows) == len(SHOWN) + HELD_OUT:
            break
        if (text := next(excerpts(document, tokenizer), None)) is not None:
            rows.append(
                {"id": f"held-out-{len(rows) - len(SHOWN)}", "kind": "completion", "prompt": text}
            )
    rows += [{"id": f"edit-{i}", "kind": "edit", "prompt": text} for i, text in enumerate(edits())]
    with (DEMO / "prompts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
