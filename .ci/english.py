"""Find words that make prose hard to read, in pages, comments, strings and test names.

`make lint` checks the files and folders in CHECKED.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKED = (
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/bare_loops",
    "benchmarks/demo_models",
    "benchmarks/faulty",
    "benchmarks/soak",
    "bls",
    "tandem/contract",
    "tandem/demo",
    "tandem/engines",
    "tandem/gateway",
    "tandem/guides",
    "tandem/lookup",
    "model_repository",
    "postprocessing",
    "preprocessing",
    "tandem/sampling",
    "tools/benchmark",
    "tools/client",
    "tools/models",
    "tools/profiles",
    "tools/triton",
    "tools/trtllm.py",
    "docs/index.md",
    "docs/faq.md",
    "docs/comparison.md",
    "docs/results.md",
    "docs/concepts",
    "docs/deploy",
    "docs/guides",
    "docs/project",
    "docs/reference",
    "docs/recording.py",
    "examples",
    "docs/screenshot.py",
    "docs/site.py",
    "docs/speedups.py",
    "tests/benchmarks",
    "tests/bls/admission",
    "tests/bls/ahead",
    "tests/bls/draft_length",
    "tests/bls/drafters",
    "tests/bls/exactness",
    "tests/bls/guided",
    "tests/bls/metrics",
    "tests/bls/parsing",
    "tests/bls/text",
    "tests/bls/triton/responses",
    "tests/bls/triton/serving",
    "tests/chat",
    "tests/gateway",
    "tests/guides",
    "tests/lookup",
    "tests/postprocessing",
    "tests/preprocessing",
    "tests/server",
    "tests/test_results.py",
    "tests/tools",
    "tests/vllm",
)
# Pattern -> what to write instead
INSTEAD = {
    r"nobody|whoever|somebody|anybody": "name the actor, or use `anyone` or `no one`",
    r"so (many|often) (?!that)": "a number, or `how many`",
    r"anew": "again, or a verb with re-",
    r"for ever": "hang, or `never ends`",
    r"beside": "next to, compared with, or in addition to",
    r"told|tells? (of|it)": "report, say or know",
    r"those of|that of": "repeat the noun",
    r"what is (new|proved)": "name the thing",
    r"refuse[sd]? by name": "reject with an error that names it",
    r"(stand|stands|stood) still": "pause",
    r"if left out": "default",
    r"likeliest": "most likely",
    r"\d %": "no space before %",
}
PATTERNS = {re.compile(rf"\b(?:{bad})(?!\w)", re.IGNORECASE): good for bad, good in INSTEAD.items()}
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
QUOTED = re.compile(r"`[^`\n]*`|\]\([^)]*\)")  # code and link targets
GENERATED = re.compile(r"<!-- code .*?<!-- /code -->", re.DOTALL)  # tables from the code


def main() -> None:
    found = [*findings()]
    if found:
        sys.exit("\n".join(found))


def findings() -> Iterator[str]:
    for name in CHECKED:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".md", ".py"):
                yield from findings_of(file)


def findings_of(file: Path) -> Iterator[str]:
    for number, line in prose(file):
        for pattern, good in PATTERNS.items():
            for bad in pattern.finditer(QUOTED.sub("`", line)):
                yield f"{file.relative_to(ROOT)}:{number}: '{bad[0]}': write {good}"


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Return the line numbers and texts of a page, or of a module's comments, strings and tests."""
    text = file.read_text()
    if file.suffix == ".md":
        text = GENERATED.sub(lambda table: "\n" * table[0].count("\n"), text)
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in TEXT:
            for i, line in enumerate(token.string.splitlines()):
                yield token.start[0] + i, line
        elif token.type == tokenize.NAME and token.string.startswith("test_"):
            yield token.start[0], token.string.replace("_", " ")


if __name__ == "__main__":
    main()
