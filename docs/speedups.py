"""Draw docs/speedups.svg from tables of docs/results.md: `make pictures`.

Each of these tables is between `<!-- measured NAME -->` and `<!-- /measured -->`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
PAGE, FIGURE = DOCS / "results.md", DOCS / "speedups.svg"

WIDTH, LEFT, MARGIN = 420, 12, 60  # width of the figure and its margins, so that it fits a phone
LABEL, BAR, GAP, HEAD, FOOT = 20, 18, 8, 40, 50  # heights in pixels
SEQUENTIAL, AHEAD = "sequential", "ahead"  # classes of STYLE
STYLE = """<style>
text { fill: #424a53 }
.ground { fill: #ffffff }
.baseline { stroke: #6e7781 }
.sequential { fill: #54aeff }
.ahead { fill: #2da44e }
@media (prefers-color-scheme: dark) {
  text { fill: #d1d7de }
  .ground { fill: #14171a }
  .baseline { stroke: #9aa4af }
}
</style>"""


class BarGroup(NamedTuple):
    """The bars with one label. bars: (speedup, class)."""

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
    scale = (WIDTH - LEFT - MARGIN) / longest
    one = LEFT + scale
    lines, y = [_text(one, HEAD - 14, "target alone", anchor="middle")], HEAD
    for group in groups:
        lines.append(_text(LEFT, y + LABEL - 6, group.label))
        y += LABEL
        top = y
        for speedup, kind in group.bars:
            length = speedup * scale
            lines.append(
                f"<rect class='{kind}' x='{LEFT}' y='{y + 1}' width='{length:.0f}' "
                f"height='{BAR - 2}'/>"
            )
            lines.append(_text(LEFT + length + 6, y + BAR - 5, f"{speedup:.2f}x"))
            y += BAR
        lines.append(
            f"<line class='baseline' x1='{one:.0f}' y1='{top}' x2='{one:.0f}' y2='{y}' "
            "stroke-dasharray='4 3'/>"
        )
        y += GAP
    lines += _legend(y + 16)
    size = f"width='{WIDTH}' height='{y + FOOT}'"
    view = f"viewBox='0 0 {WIDTH} {y + FOOT}'"
    font = "font-family='system-ui, sans-serif' font-size='13'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} {view} role='img' {font}>",
            "<title>speedup over the target alone, one request at a time</title>",
            STYLE,
            f"<rect class='ground' {size}/>",
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
    for row, (kind, text) in enumerate(
        ((SEQUENTIAL, "draft, then verify"), (AHEAD, "draft while the target verifies"))
    ):
        yield f"<rect class='{kind}' x='{LEFT}' y='{y + 18 * row - 10}' width='12' height='12'/>"
        yield _text(LEFT + 18, y + 18 * row, text)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'>{escape(text)}</text>"


if __name__ == "__main__":
    FIGURE.write_text(figure())
