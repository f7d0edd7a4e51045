"""From what the sides gave to the table: medians, ratios, bars, Markdown. Pure.

The machine may be shared and noisy: a side is only compared with a side that ran in the same minutes, and the
spread between rounds is printed beside the ratios.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.bars import BARS, Bar
from benchmarks.sides import TITLES, NotRun
from benchmarks.timing import MEMORY, Outcome

Rounds = Mapping[str, Sequence[Outcome | NotRun]]
"""What each side gave for one case, a round each, by the side's name."""

SAME = 0.01
"""Numbers that differ by more than this, relative to the larger, are of different work: float32 sums of 16
million and three training steps agree to 1e-3.
"""


class Judged(NamedTuple):
    """A bar beside the ratio that was measured."""

    bar: Bar
    ratio: float

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.bar.limit


class Row(NamedTuple):
    """One measure of one case: the median over the rounds of every side that has it."""

    case: str
    measure: str
    figures: dict[str, float]

    def ratio(self, peer: str) -> float | None:
        """flowrt's median over the peer's; None where one of them has none."""
        if "flowrt" not in self.figures or peer not in self.figures:
            return None
        return self.figures["flowrt"] / self.figures[peer]

    def judged(self, bar: Bar) -> Judged | None:
        """None where flowrt or all of the bar's peers have no figure; the slower peers may be missing."""
        ratios = [ratio for ratio in map(self.ratio, bar.peers) if ratio is not None]
        return Judged(bar, max(ratios)) if ratios else None

    @property
    def bars(self) -> tuple[Bar, ...]:
        return BARS.get((self.case, self.measure), ())


def rows_of(case: str, rounds: Rounds) -> list[Row]:
    """A row a measure; a row without figures where no side ran the case."""
    figures: dict[str, dict[str, list[float]]] = {}
    for side, outcomes in rounds.items():
        for outcome in outcomes:
            if isinstance(outcome, Outcome):
                for measure, figure in outcome.figures.items():
                    figures.setdefault(measure, {}).setdefault(side, []).append(figure)
    rows = [
        Row(case, measure, {side: median(values) for side, values in sides.items()})
        for measure, sides in figures.items()
    ]
    return rows or [Row(case, "", {})]


def remarks_of(case: str, rounds: Rounds) -> Iterator[str]:
    """What the figures do not say: who did not run, who computed something else, how far rounds differed."""
    for side, outcomes in rounds.items():
        reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, NotRun)]
        if reasons:
            yield f"`{case}`: not run by {TITLES[side]}: {reasons[0]}"
    yield from _differences(case, rounds)
    spreads = {TITLES[side]: spread for side in rounds if (spread := _spread(rounds[side])) > 0.25}
    if spreads:
        noise = ", ".join(f"{title} {spread:.0%}" for title, spread in spreads.items())
        yield f"`{case}`: rounds differed by more than a quarter: {noise}"


def _differences(case: str, rounds: Rounds) -> Iterator[str]:
    values = {
        side: outcome.value
        for side, outcomes in rounds.items()
        for outcome in outcomes
        if isinstance(outcome, Outcome) and outcome.value is not None
    }
    first = next(iter(values), "")
    for side, value in values.items():
        expected = values[first]
        if side != first and not abs(value - expected) <= SAME * max(abs(value), abs(expected)):
            told = f"{TITLES[side]} computed {value:.6g}, {TITLES[first]} {expected:.6g}"
            yield f"`{case}`: **not the same work**: {told}"


def _spread(outcomes: Sequence[Outcome | NotRun]) -> float:
    """The slowest round over the fastest, less one, of the measure where that is largest."""
    rounds = [outcome.figures for outcome in outcomes if isinstance(outcome, Outcome)]
    return max(
        (max(r[m] for r in rounds) / min(r[m] for r in rounds) - 1 for m in (rounds[0] if rounds else ())),
        default=0.0,
    )


def format_seconds(seconds: float) -> str:
    """Three digits and a unit: ``1.25 us``, ``43.0 ms``, ``33.6 s``."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def table_lines(rows: Iterable[Row], sides: Sequence[str]) -> Iterator[str]:
    """The Markdown table of ``rows``, a column a side; bars where there are peers to be measured against.

    A peer's cell is its median, and flowrt's ratio to it in brackets.
    """
    has_bars = any(side != "flowrt" for side in sides)
    head = ["case", "measure", *(TITLES[side] for side in sides), *["bars"] * has_bars]
    yield _line(head)
    yield _line(["---"] * len(head))
    for row in rows:
        bars = [", ".join(_format_bar(bar, row.judged(bar)) for bar in row.bars)] * has_bars
        cells = (_format_cell(row, side) for side in sides)
        yield _line([f"`{row.case}`", row.measure.replace("_", " "), *cells, *bars])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_cell(row: Row, side: str) -> str:
    if side not in row.figures:
        return "not run" if side == "flowrt" else ""
    ratio = row.ratio(side) if side != "flowrt" else None
    figure = row.figures[side]
    shown = f"{figure / 2**20:.0f} MiB" if row.measure == MEMORY else format_seconds(figure)
    return shown + ("" if ratio is None else f" ({ratio:.3g})")


def _format_bar(bar: Bar, judged: Judged | None) -> str:
    peers = " or ".join(TITLES[peer] for peer in bar.peers)
    text = f"{bar.limit:g} x {peers}"
    if judged is None:
        return text
    return f"{text}: {judged.ratio:.3g}" + ("" if judged.is_met else " **above**")


def summary_of(rows: Iterable[Row]) -> str:
    """How many bars hold."""
    found = [(bar, row.judged(bar)) for row in rows for bar in row.bars]
    judged = [verdict for _, verdict in found if verdict is not None]
    held = sum(verdict.is_met for verdict in judged)
    left = f"; {len(found) - len(judged)} without figures" if len(judged) < len(found) else ""
    return f"{held} of {len(judged)} bars hold{left}."
