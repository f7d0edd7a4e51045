"""Public TensorFlow 1 programs on flowrt and on TensorFlow, from equal weights: what they fetch, compared.

    python -m tests.scripts.public.compared RESULTS [NAME ...]

RESULTS is the folder in which `recorded` has noted what the programs of `compared.txt` fetch on each side.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.scripts.public.recorded import TABLE, Program, read_programs

TOLERANCE = 2e-4
"""Of the largest element of a fetched array, in the first run: float32 sums in another order. Steps of training
amplify it: it may double in each run."""
NOT_RECORDED = "not recorded"


class Recorded(NamedTuple):
    """What a program fetched in each run, and the error that ended it, or ""."""

    runs: list[list[tuple[tuple[int, ...], Any]]]
    error: str


def read(program: Program, side: str, results: Path) -> Recorded:
    file = results / f"{program.name}.{side}.pkl"
    return Recorded(*pickle.loads(file.read_bytes())) if file.exists() else Recorded([], NOT_RECORDED)


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of two runs' arrays, each as a part of its largest element; infinite if their
    number, shapes or finite elements differ."""
    if [shape for shape, _ in ours] != [shape for shape, _ in theirs]:
        return np.inf
    worst = 0.0
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return np.inf
        finite = np.isfinite(a)
        if finite.any():
            a, b = a[finite].astype(np.complex128), b[finite].astype(np.complex128)
            worst = max(worst, float(abs(a - b).max() / max(1e-3, abs(b).max())))
    return worst


def compare(ours: Recorded, theirs: Recorded) -> tuple[str, str]:
    """How a program went on both sides: in a word, and why."""
    if NOT_RECORDED in (ours.error, theirs.error):
        return NOT_RECORDED, ""
    each = [difference(a, b) for a, b in zip(ours.runs, theirs.runs, strict=False)]
    first = next((i for i, d in enumerate(each) if d > TOLERANCE * 2**i), None)
    if first is not None:
        return "differ", f"from run {first} of {len(each)}: " + " ".join(f"{d:.0e}" for d in each)
    if ours.error and theirs.error and len(ours.runs) >= len(theirs.runs):
        word = "both stop"
    elif ours.error or theirs.error:
        word = "flowrt stops" if ours.error else "only flowrt"
    else:
        word = "agree" if each else "no runs"
    errors = " | ".join(filter(None, [ours.error, theirs.error])).partition("\n")[0]
    return word, f"{len(each)} runs, {max(each, default=0):.0e} {errors}"


def table(words: Mapping[str, Counter[str]]) -> str:
    """A row of Markdown for each repository: how many programs agree, and how the others went."""
    rows = ["| repository | programs | agree | others |", "|---|---|---|---|"]
    for repository, counts in words.items():
        others = ", ".join(f"{n} {word}" for word, n in sorted(counts.items()) if word != "agree")
        rows.append(f"| {repository} | {counts.total()} | {counts['agree']} | {others} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare public TensorFlow 1 programs on flowrt and TensorFlow.")
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*", help="parts of the programs' names; none: all")
    parser.add_argument("--table", action="store_true", help="a table of the repositories instead")
    arguments = parser.parse_args()
    words: dict[str, Counter[str]] = {}
    for program in read_programs(TABLE.read_text()):
        if not arguments.names or any(name in program.name for name in arguments.names):
            sides = [read(program, side, arguments.results) for side in ("flowrt", "tensorflow")]
            word, why = compare(*sides)
            words.setdefault(program.repository, Counter())[word] += 1
            if not arguments.table:
                print(f"{word:12} {program.repository} {' '.join(program.words)[:60]}: {why}", flush=True)
    counts = sum(words.values(), Counter())
    print(table(words) if arguments.table else dict(counts))
    return int(counts["differ"] + counts["flowrt stops"] > 0)


if __name__ == "__main__":
    sys.exit(main())
