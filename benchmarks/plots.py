"""The pictures beside the tables. The one module that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.report import Row, format_seconds
from benchmarks.sides import PEERS, TITLES

MARKERS = dict(zip(PEERS, ("o", "s", "D", "^"), strict=True))
Points = Sequence[tuple[float, float]]


def draw_ratios(rows: Sequence[Row], path: Path) -> None:
    """One line a row with flowrt's ratio to each peer on a logarithmic axis, and its bars as ticks."""
    rows = [row for row in rows if any(row.ratio(peer) is not None for peer in PEERS)]
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(1.0, color="0.7", linewidth=1)
    for index, peer in enumerate(PEERS):
        _draw_peer(axes, rows, peer, f"C{index}")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(rows)), [f"{row.case}  {row.measure.replace('_', ' ')}" for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "flowrt's time over the peer's: left of 1 flowrt is faster.  | the bar, in its peer's colour"
    )
    if rows:
        figure.legend(loc="outside upper center", ncols=len(PEERS), frameon=False)
    figure.savefig(path, dpi=150)


def _draw_peer(axes: Axes, rows: Sequence[Row], peer: str, color: str) -> None:
    measured = [(row.ratio(peer), y) for y, row in enumerate(rows)]
    ratios = [(ratio, y) for ratio, y in measured if ratio is not None]
    bars = [(bar.limit, y) for y, row in enumerate(rows) for bar in row.bars if peer in bar.peers]
    if ratios:
        axes.scatter(*_xy(ratios), color=color, marker=MARKERS[peer], label=TITLES[peer], zorder=3)
        axes.scatter(*_xy(bars), color=color, marker="|", s=280, linewidths=2.5)


def _xy(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def draw_scaling(panels: Mapping[str, Mapping[str, Points]], path: Path) -> None:
    """One panel a quantity that grows, seconds against it on logarithmic axes, a curve a name."""
    figure = Figure(figsize=(5.2 * len(panels), 4), layout="constrained")
    columns = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (quantity, curves) in zip(columns, panels.items(), strict=True):
        for name, points in curves.items():
            axes.plot(*_xy(points), marker="o", label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds))
        axes.set_xlabel(quantity)
        axes.grid(color="0.9")
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
