"""Draw docs/speedups.svg from tables of docs/results.md: `make results`.

Each of these tables is between `<!-- measured NAME -->` and `<!-- /measured -->`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
PAGE, FIGURE = DOCS / "results.md", DOCS / "speedups.svg"

WIDTH, LABELS, MARGIN = 760, 250, 60  # widths of the figure, the labels and the right margin
BAR, GAP, HEAD, FOOT = 16, 14, 34, 30  # heights in pixels
BASELINE, SEQUENTIAL, AHEAD = "#8c959f", "#54aeff", "#2da44e"
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#57606a'"


class BarGroup(NamedTuple):
    """The bars with one label. bars: (speedup, color)."""

    label: str
    bars: tuple[tuple[float, str], ...]


def rows(name: str) -> list[list[str]]:
    """Return the cells of a table, row by row. An empty first cell repeats the cell above it."""
    table = PAGE.read_text().partition(f"<!-- measured {name} -->\n")[2].partition("\n\n")[0]
    _, _, *lines = table.splitlines()  # without the heading
    found: list[list[str]] = []
    for line in lines:
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found.append([first or found[-1][0], *cells])
    return found


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
    for task, drafter, _, speedup, *_ in rows("demo-pair"):
        if drafter == "`hybrid`":
            yield BarGroup(f"demo pair, {task}", ((_number(speedup), SEQUENTIAL),))


def _emulated_groups() -> Iterator[BarGroup]:
    for pair, _, _, sequential, _, ahead, _ in rows("ahead"):
        if pair.endswith(", greedy"):
            label = f"emulated {pair.removesuffix(', greedy')}"
            bars = (_number(sequential), SEQUENTIAL), (_number(ahead), AHEAD)
            yield BarGroup(label, bars)


def _number(speedup: str) -> float:
    return float(speedup.removesuffix("x"))


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
    FIGURE.write_text(figure())
