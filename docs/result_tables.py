"""Fill the tables of docs/results.md and draw docs/speedups.svg from benchmarks/results/*.json.

`make results` runs this script. A table is between `<!-- measured NAME -->` and
`<!-- /measured -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
MEASURED = DOCS.parent / "benchmarks" / "results"
PAGE, FIGURE = DOCS / "results.md", DOCS / "speedups.svg"
TABLE = re.compile(r"(<!-- measured ([\w-]+) -->\n).*?(<!-- /measured -->)", re.DOTALL)

WIDTH, LABELS, MARGIN = (
    760,
    250,
    60,
)  # widths of the figure, the labels and the right margin
BAR, GAP, HEAD, FOOT = 16, 14, 34, 30  # heights in pixels
BASELINE, SEQUENTIAL, AHEAD = "#8c959f", "#54aeff", "#2da44e"
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#57606a'"


class BarGroup(NamedTuple):
    """The bars with one label. bars: (speedup, color)."""

    label: str
    bars: tuple[tuple[float, str], ...]


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))
    FIGURE.write_text(figure())


def measured(name: str) -> Mapping[str, Any]:
    """Return the content of benchmarks/results/NAME.json.

    `columns` maps each column to its format. A null cell stays empty.
    """
    result: Mapping[str, Any] = json.loads((MEASURED / f"{name}.json").read_text())
    return result


def filled(page: str) -> str:
    """Return the text of a page with all its tables filled from their JSON files."""
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


def table(name: str) -> str:
    """Return a Markdown table, followed by its date, commit and machine."""
    result = measured(name)
    formats = [*result["columns"].values()]
    rows = [[*result["columns"]], ["---"] * len(formats)]
    previous: list[Any] = [None]
    for row in result["rows"]:
        cells = [
            "" if cell is None else form.format(cell)
            for form, cell in zip(formats, row, strict=True)
        ]
        if row[0] == previous[0]:
            cells[0] = ""
        rows.append(cells)
        previous = row
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    origin = (
        f"*{result['date']}, commit {result['commit']}, {result['machine']}; "
        f"[commands](../benchmarks/results/{name}.json).*"
    )
    return "\n".join([*lines, "", origin, ""])


def figure() -> str:
    """Return the bar chart as SVG."""
    groups = [*_demo_groups(), *_emulated_groups()]
    longest = max(speedup for group in groups for speedup, _ in group.bars)
    scale = (WIDTH - LABELS - MARGIN) / longest
    lines, y = [], HEAD
    for group in groups:
        height = BAR * len(group.bars)
        lines.append(_text(LABELS - 10, y + height / 2 + 4, group.label, anchor="end"))
        for speedup, color in group.bars:
            length = speedup * scale
            lines.append(
                f"<rect x='{LABELS}' y='{y + 1}' width='{length:.0f}' height='{BAR - 2}' "
                f"fill='{color}'/>"
            )
            lines.append(_text(LABELS + length + 6, y + BAR - 4, f"{speedup:.2f}x"))
            y += BAR
        y += GAP
    one = LABELS + scale
    lines.append(
        f"<line x1='{one:.0f}' y1='{HEAD - 8}' x2='{one:.0f}' y2='{y}' stroke='{BASELINE}' "
        "stroke-dasharray='4 3'/>"
    )
    lines.append(_text(one, HEAD - 14, "target alone", anchor="middle"))
    lines += _legend(y + FOOT - 12)
    size = f"width='{WIDTH}' height='{y + FOOT}'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {STYLE}>",
            "<title>speedup over the target alone, one request at a time</title>",
            f"<rect {size} fill='#ffffff'/>",
            *lines,
            "</svg>\n",
        ]
    )


def _demo_groups() -> Iterator[BarGroup]:
    for task, drafter, _, speedup, *_ in measured("demo-pair")["rows"]:
        if drafter == "`hybrid`":
            yield BarGroup(f"demo pair, {task}", ((speedup, SEQUENTIAL),))


def _emulated_groups() -> Iterator[BarGroup]:
    for pair, _, _, sequential, _, ahead, _ in measured("ahead")["rows"]:
        if pair.endswith(", greedy"):
            label = f"emulated {pair.removesuffix(', greedy')}"
            yield BarGroup(label, ((sequential, SEQUENTIAL), (ahead, AHEAD)))


def _legend(y: float) -> Iterator[str]:
    for x, color, text in (
        (LABELS, SEQUENTIAL, "draft, then verify"),
        (LABELS + 170, AHEAD, "draft while the target verifies"),
    ):
        yield f"<rect x='{x}' y='{y - 10}' width='12' height='12' fill='{color}'/>"
        yield _text(x + 18, y, text)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'>{escape(text)}</text>"


if __name__ == "__main__":
    main()
