"""Draws README's figure: what drafts gain, by the tables of the results.

`make figure` runs it: it reads docs/results.md and writes docs/speedups.svg anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

RESULTS = Path(__file__).with_name("results.md")
FIGURE = Path(__file__).with_name("speedups.svg")
DEMO, AHEAD = "## The demo", "### In turns and ahead"  # the sections that the bars come from

WIDTH, NAMES, ROOM = 760, 250, 60  # of the figure, of the names, and behind the longest bar
BAR, GAP, HEAD, FOOT = 16, 14, 34, 30  # heights
ALONE, IN_TURNS, AHEAD_COLOUR = "#8c959f", "#54aeff", "#2da44e"
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#57606a'"


class SpeedupBar(NamedTuple):
    """How many times the speed of the target alone, and what of."""

    speedup: float
    colour: str


class BarGroup(NamedTuple):
    """The bars of one pair."""

    name: str
    bars: tuple[SpeedupBar, ...]


def main() -> None:
    """Read, draw, write."""
    FIGURE.write_text(figure(RESULTS.read_text()))


def figure(results: str) -> str:
    """Return the figure as SVG."""
    groups = [*_of_demo(section(results, DEMO)), *_of_pairs(section(results, AHEAD))]
    longest = max(bar.speedup for group in groups for bar in group.bars)
    scale = (WIDTH - NAMES - ROOM) / longest
    lines, y = [], HEAD
    for group in groups:
        height = BAR * len(group.bars)
        lines.append(_text(NAMES - 10, y + height / 2 + 4, group.name, anchor="end"))
        for bar in group.bars:
            long = bar.speedup * scale
            lines.append(
                f"<rect x='{NAMES}' y='{y + 1}' width='{long:.0f}' height='{BAR - 2}' "
                f"fill='{bar.colour}'/>"
            )
            lines.append(_text(NAMES + long + 6, y + BAR - 4, f"{bar.speedup:.2f}x"))
            y += BAR
        y += GAP
    alone = NAMES + scale
    lines.append(
        f"<line x1='{alone:.0f}' y1='{HEAD - 8}' x2='{alone:.0f}' y2='{y}' stroke='{ALONE}' "
        "stroke-dasharray='4 3'/>"
    )
    lines.append(_text(alone, HEAD - 14, "the target alone", anchor="middle"))
    lines += _legend(y + FOOT - 12)
    height = y + FOOT
    size = f"width='{WIDTH}' height='{height}'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {STYLE}>",
            "<title>tokens per second, of the target alone</title>",
            f"<rect {size} fill='#ffffff'/>",
            *lines,
            "</svg>\n",
        ]
    )


def section(results: str, heading: str) -> str:
    """Return what is under a heading, up to the next one of any rank."""
    _, found, behind = results.partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"{RESULTS.name} has no section '{heading}'")
    return re.split(r"\n#+ ", behind, maxsplit=1)[0]


def _of_demo(text: str) -> Iterator[BarGroup]:
    """Return the demo's kinds of prompts, from its own table."""
    for kind, speedup in re.findall(r"^all (completions|edits) .*?([\d.]+)x", text, re.MULTILINE):
        name = f"demo on two cores, {kind}"
        yield BarGroup(name, (SpeedupBar(float(speedup), IN_TURNS),))


def _of_pairs(text: str) -> Iterator[BarGroup]:
    """Return the emulated pairs: `| pair | tokens/s | best in turns | of alone | ahead | ...`."""
    for pair, in_turns, ahead in re.findall(
        r"^\| (\d+B and \d+B) \|(?:[^|]*\|){2} ([\d.]+)x \|[^|]*\| ([\d.]+)x \|", text, re.MULTILINE
    ):
        bars = SpeedupBar(float(in_turns), IN_TURNS), SpeedupBar(float(ahead), AHEAD_COLOUR)
        yield BarGroup(f"emulated {pair}", bars)


def _legend(y: float) -> Iterator[str]:
    for x, colour, text in (
        (NAMES, IN_TURNS, "draft, then verify"),
        (NAMES + 170, AHEAD_COLOUR, "drafts made ahead, meanwhile"),
    ):
        yield f"<rect x='{x}' y='{y - 10}' width='12' height='12' fill='{colour}'/>"
        yield _text(x + 18, y, text)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'>{escape(text)}</text>"


if __name__ == "__main__":
    main()
