"""Speedup against draft length, and what it would be without orchestration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tandem.bls.settings import AUTO
from tandem.tools import extras
from tandem.tools.benchmark.statistics import VariantStatistics
from tandem.tools.errors import TandemError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (6.4, 4.4)
DOTS_PER_INCH = 120


class Curve(NamedTuple):
    """Points of one drafter: draft length -> statistics. auto: with lengths chosen for it."""

    points: Mapping[int, VariantStatistics]
    auto: VariantStatistics | None


def check_plot(path: Path | None) -> None:
    """Raise TandemError where a plot is wanted and cannot be drawn."""
    if path is not None and find_spec("matplotlib") is None:
        raise TandemError(f"--plot needs matplotlib; {extras.install('bench')}")


def curves_of(rows: Sequence[VariantStatistics]) -> dict[str, Curve]:
    """Return what each drafter, and each n-gram size of it, makes of every draft length."""
    curves: dict[str, Curve] = {}
    for row in rows:
        variant = row.cell.variant
        if variant.is_control or variant.draft_len is None:
            continue
        ngram = "" if variant.ngram_size is None else f", n-gram {variant.ngram_size}"
        name = f"{variant.drafter}{ngram}"
        curve = curves.setdefault(name, Curve({}, None))
        if variant.draft_len == AUTO:
            curves[name] = curve._replace(auto=row)
        else:
            curves[name] = curve._replace(points={**curve.points, variant.draft_len: row})
    return curves


def draw(served: str, rows: Sequence[VariantStatistics], path: Path) -> None:
    """Draw a panel for each scenario and number of streams; raise TandemError where it fails."""
    # Heavy, and wanted by nobody who does not plot.
    from matplotlib.figure import Figure  # noqa: PLC0415

    panels: dict[tuple[str, int], list[VariantStatistics]] = {}
    for row in rows:
        panels.setdefault((row.cell.scenario, row.cell.num_streams), []).append(row)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    figure.suptitle(served)
    for axes, (place, found) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.set_title("{}, {} at once".format(*place))
        _draw_panel(axes, curves_of(found))
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except (OSError, ValueError) as error:
        raise TandemError(f"cannot write {path}: {error}") from error


def _draw_panel(axes: Axes, curves: Mapping[str, Curve]) -> None:
    axes.axhline(1.0, color="grey", linewidth=0.8)
    for number, (name, curve) in enumerate(curves.items()):
        colour = f"C{number}"
        lengths = sorted(curve.points)
        spreads = [(at, curve.points[at].speedup) for at in lengths]
        known = [(at, spread) for at, spread in spreads if spread]
        if known:
            xs, ys = [at for at, _ in known], [s.median for _, s in known]
            bars = ([s.median - s.low for _, s in known], [s.high - s.median for _, s in known])
            axes.errorbar(xs, ys, yerr=bars, color=colour, marker="o", capsize=2, label=name)
        ideals = [(at, curve.points[at].ideal_speedup) for at in lengths]
        ideal = [(at, spread.median) for at, spread in ideals if spread]
        if ideal:
            label = f"{name}, without orchestration"
            axes.plot(*zip(*ideal, strict=True), color=colour, linestyle="--", label=label)
        if curve.auto and curve.auto.speedup:
            speedup = curve.auto.speedup.median
            axes.axhline(speedup, color=colour, linestyle=":", label=f"{name}, auto")
    axes.set_xlabel("draft tokens a round")
    axes.set_ylabel("speedup over drafter none")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
