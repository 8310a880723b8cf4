"""Write `prompts.jsonl`: `python -m demo.prompts`. Eight to show, the rest held-out code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from demo.corpus import Document, documents
from demo.tokens import DEMO, load_tokenizer

SHOWN = (
    (
        'def parse_header(line):\n    """Parse a header line and return a tuple (name, value)."""\n'
        "    if not line:"
    ),
    (
        'def check_array(x, dtype=None):\n    """Check that x is an array."""\n'
        "    if not isinstance(x, np.ndarray):\n        raise"
    ),
    (
        'async def read_all(stream, limit=None):\n    """Read all data from a stream."""\n'
        "    chunks = []\n    while True:"
    ),
    (
        'class Visitor(ast.NodeVisitor):\n    """Collect the names of all functions."""\n\n'
        "    def visit_FunctionDef(self, node):"
    ),
    "def _check_key(self, key):\n    if not isinstance(key, str):\n        raise TypeError(",
    (
        'class _RLock:\n    """This class implements reentrant lock objects."""\n\n'
        "    def acquire(self, blocking=True, timeout=-1):"
    ),
    (
        "def split_tensor(tensor: torch.Tensor, dim: int, world_size: int) -> list[torch.Tensor]:\n"
        '    """\n    Split a tensor'
    ),
    (
        "class SGD(Optimizer):\n    def __init__(self, params, lr=1e-3, momentum=0.0):\n"
        "        if lr < 0.0:\n            raise ValueError("
    ),
)
HELD_OUT = 52
MIN_TOKENS, MAX_TOKENS = 24, 160
START = re.compile(r"^(?:    )?(?:class|def) \w+", re.MULTILINE)
NATURAL_END = re.compile(r"[:,(\w\"')\]]\Z")


def excerpts(document: Document, tokenizer: Tokenizer) -> Iterator[str]:
    """Beginnings of functions and classes of `document`, cut at a line's end after a few lines."""
    rng = np.random.default_rng(len(document.text))
    for start in rng.permutation([m.start() for m in START.finditer(document.text)]).tolist():
        lines = document.text[start : start + 2000].split("\n")
        text = "\n".join(lines[: int(rng.integers(3, 14))]).rstrip()
        if NATURAL_END.search(text) and MIN_TOKENS <= len(tokenizer.encode(text).ids) <= MAX_TOKENS:
            yield text


def main() -> None:
    """Take one excerpt a file, files in hash order, until there are enough."""
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
    with (DEMO / "prompts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
