"""Differences between the runs of a report: facts and results, one value per folder of event files.

A folder with several records of facts, of a process that was started again or of several workers, has each of
their values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from flowrt.profiler.costs import short_device
from flowrt.profiler.text_table import size_text
from flowrt.report.read_run import Point, Run
from flowrt.report.scale import duration, number
from flowrt.summary.run_facts import FLAGS_SECTION, RunFacts

Fact = tuple[str, str]
"""The section and the name of a fact."""

SEPARATOR = " | "
"""Between the values of several processes."""

_WORDS = {
    "lowest": r"loss|error|cost|perplexity|mae|mse|rmse|wer|cer",
    "highest": r"acc|accuracy|precision|recall|f1|auc|iou|bleu|reward|return|score",
}
_BEST: dict[str, Callable[..., float]] = {"lowest": min, "highest": max}


class Row(NamedTuple):
    """A quantity of each folder; ``measure`` tells what of the curve or trace ``name`` it is. The folders in
    ``best`` have the best value.
    """

    name: str
    measure: str
    cells: Mapping[str, str]
    best: frozenset[str] = frozenset()


def facts_of(run: Run) -> dict[Fact, dict[str, str]]:
    """The values of each fact, by folder: those of its processes in the order of their starts."""
    found: dict[Fact, dict[str, list[str]]] = {}
    for folder, record in sorted(run.facts, key=lambda each: each[1].start):
        for section, facts in record.sections.items():
            for name in facts:
                values = found.setdefault((section, name), {}).setdefault(folder, [])
                text = _value(record, section, name)
                if text not in values:
                    values.append(text)
    return {
        fact: {folder: SEPARATOR.join(values) for folder, values in each.items()}
        for fact, each in found.items()
    }


def common_facts(run: Run) -> dict[Fact, str]:
    """The facts that are the same in all folders with a record."""
    folders = {folder for folder, _ in run.facts}
    return {
        fact: next(iter(values.values()))
        for fact, values in facts_of(run).items()
        if values.keys() == folders and len(set(values.values())) == 1
    }


def compared(run: Run) -> list[Row]:
    """The hyper-parameters that differ, how the runs went, and the other facts that differ."""
    common = common_facts(run)
    rows = [Row(name, section, values) for (section, name), values in facts_of(run).items()
            if (section, name) not in common]  # fmt: skip
    flags = [row for row in rows if row.measure == FLAGS_SECTION]
    return [*flags, *_results(run), *(row for row in rows if row.measure != FLAGS_SECTION)]


def _results(run: Run) -> list[Row]:
    """Time, steps, speed, memory, and the last and best values of curves, of each folder."""
    by_folder = {folder: _curves(run, folder) for folder in run.folders}
    points = {folder: [p for line in curves.values() for p in line] for folder, curves in by_folder.items()}
    seen = {folder: each for folder, each in points.items() if each}
    rows = [
        Row("duration", "", {f: duration((max(p.time for p in each) - min(p.time for p in each)) * 1e9)
                             for f, each in seen.items()}),
        Row("last step", "", {f: str(max(p.step for p in each)) for f, each in seen.items()}),
        _row("steps a second", "median", {f: _speed(curves) for f, curves in by_folder.items()}, number,
             "highest"),
    ]  # fmt: skip
    for device, lines in sorted(run.peaks.items()):
        peaks = {f: max((p.value for p in _points(lines, run, f)), default=math.nan) for f in run.folders}
        rows.append(_row(f"peak memory, {short_device(device)}", "", peaks, size_text, "lowest"))
    for tag in sorted(run.curves, key=lambda tag: ("loss" not in tag.lower(), tag)):
        rows += _curve_rows(tag, {f: curves[tag] for f, curves in by_folder.items() if tag in curves})
    return [row for row in rows if row.cells]


def _curve_rows(tag: str, curves: Mapping[str, list[Point]]) -> Iterator[Row]:
    kind = best_kind(tag)
    yield _row(tag, "last", {folder: points[-1].value for folder, points in curves.items()}, number, kind)
    if kind is not None:
        bests = {
            folder: _BEST[kind]((p.value for p in points if not math.isnan(p.value)), default=math.nan)
            for folder, points in curves.items()
        }
        yield _row(tag, kind, bests, number, kind)


def best_kind(tag: str) -> str | None:
    """The kind of a curve's best value, ``lowest`` or ``highest``, by the words of its tag; None if they tell
    neither or both.
    """
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tag).lower()))
    kinds = [kind for kind, names in _WORDS.items() if any(re.fullmatch(names, word) for word in words)]
    return kinds[0] if len(kinds) == 1 else None


def _row(
    name: str, measure: str, values: Mapping[str, float], text: Callable[[float], str], kind: str | None
) -> Row:
    """A row of numbers, with the best marked if they differ. NaN stands for no value, except for a curve's
    last point, which is shown.
    """
    numbers = {folder: value for folder, value in values.items() if not math.isnan(value)}
    best = _BEST[kind](numbers.values()) if kind and len(set(numbers.values())) > 1 else None
    shown = values if measure == "last" else numbers
    return Row(
        name,
        measure,
        {folder: text(value) for folder, value in shown.items()},
        frozenset(folder for folder, value in numbers.items() if value == best),
    )


def _value(record: RunFacts, section: str, name: str) -> str:
    value = record.sections[section][name]
    default = record.defaults.get(name, value)
    return value if section != FLAGS_SECTION or value == default else f"{value} (default {default})"


def _curves(run: Run, folder: str) -> dict[str, list[Point]]:
    """The points of a folder, by tag; of all its lines, in their order."""
    found = {tag: list(_points(lines, run, folder)) for tag, lines in run.curves.items()}
    return {tag: points for tag, points in found.items() if points}


def _points(lines: Mapping[str, list[Point]], run: Run, folder: str) -> Iterator[Point]:
    """The points of the folder's line, and of ``folder (2)`` and so on, after a restart."""
    for name, points in lines.items():
        if name == folder or (
            name not in run.folders and re.fullmatch(re.escape(folder) + r" \(\d+\)", name)
        ):
            yield from points


def _speed(curves: Mapping[str, list[Point]]) -> float:
    """The median, over the curve of most points, of steps a second between a point and the next: pauses,
    restarts and the first steps are few. NaN for less than two points.
    """
    points = max(curves.values(), key=len, default=[])
    rates = [
        (after.step - before.step) / (after.time - before.time)
        for before, after in pairwise(points)
        if after.step > before.step and after.time > before.time
    ]
    return median(rates) if rates else math.nan
