"""Run the cases on flowrt and on its peers in turn; write a Markdown table of medians, ratios and bars, and a
plot of the ratios.

The machine may be shared and noisy: the sides run in the same minutes, A B A B, each in a process of its own,
and the ratio of medians counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import sides
from benchmarks.report import Rounds, Row, remarks_of, rows_of, summary_of, table_lines
from benchmarks.sides import NotRun, Side
from benchmarks.timing import Outcome

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if flowrt failed in a case; an operation that is not there yet is no failure. A mistake on the
    command line is 2, Ctrl-C 130.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _run(parser, options)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    ours = sides.ours()
    if isinstance(ours, NotRun):
        sys.exit(f"flowrt: {ours.reason}")
    cases = _chosen(parser, options.cases, ours.cases)
    _make_folder(parser, options.out)
    peers, absent = ([], []) if options.only_ours else _find_peers(parser, options.peers)
    report = Report(options.out, [ours, *peers])
    for remark in absent:
        report.remark(remark)
    is_sound = True
    for case in cases:
        rounds = run_case(case, report.sides, options.rounds)
        report.add(case, rounds)
        is_sound &= not any(isinstance(o, NotRun) and o.is_failure for o in rounds["flowrt"])
    report.end()
    return 0 if is_sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help="run these; all if none is named")
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument(
        "--peers", type=Path, help="an environment (folder or interpreter) with TensorFlow, PyTorch, JAX"
    )
    against.add_argument("--only-ours", action="store_true", help="flowrt alone: medians without ratios")
    parser.add_argument("--rounds", type=_count, default=2, help="runs of each side (default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder of the table (default %(default)s)"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1; got {text}")
    return int(text)


def _make_folder(parser: argparse.ArgumentParser, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: expected a folder, or a place for one; got {path}: {error.strerror}")


def _chosen(parser: argparse.ArgumentParser, names: list[str], there: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in names if name not in there]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(there)}")
    return names or there


def _find_peers(parser: argparse.ArgumentParser, path: Path) -> tuple[list[Side], list[str]]:
    """The peers that the environment at ``path`` has, and a remark on each that it has not."""
    try:
        interpreter = sides.find_interpreter(path)
    except sides.NoInterpreter as error:
        parser.error(str(error))
    found = {name: sides.find_side(name, interpreter) for name in sides.PEERS}
    absent = [
        f"{sides.TITLES[name]} is left out: {side.reason}"
        for name, side in found.items()
        if isinstance(side, NotRun)
    ]
    return [side for side in found.values() if isinstance(side, Side)], absent


def run_case(case: str, sides_of_run: Sequence[Side], rounds: int) -> Rounds:
    """Run ``case`` on every side that has it, ``rounds`` times by turns."""
    having = [side for side in sides_of_run if case in side.cases]
    outcomes: dict[str, list[Outcome | NotRun]] = {side.name: [] for side in having}
    for _ in range(rounds):
        for side in having:
            outcomes[side.name].append(sides.measure(side, case))
    return outcomes


class Report:
    """Prints rows as they come and keeps ``table.md`` whole after every case, so that a run that is broken
    off leaves what it has. ``folder`` is there.
    """

    def __init__(self, folder: Path, sides_of_run: Sequence[Side]) -> None:
        self.sides = sides_of_run
        self._folder = folder
        self._names = [side.name for side in sides_of_run]
        self._head = list(conditions(sides_of_run))
        self._rows: list[Row] = []
        self._remarks: list[str] = []
        print("\n".join([*self._head, "", *table_lines([], self._names)]), flush=True)

    def add(self, case: str, rounds: Rounds) -> None:
        rows = rows_of(case, rounds)
        print("\n".join(list(table_lines(rows, self._names))[2:]), flush=True)
        self._rows += rows
        for remark in remarks_of(case, rounds):
            self.remark(remark)
        self._write()

    def remark(self, text: str) -> None:
        self._remarks.append(f"- {text}")

    def end(self) -> None:
        self._write()
        written = [self._folder / "table.md"]
        if len(self.sides) > 1:
            written += plot(self._rows, self._folder / "ratios.png")
        print("\n".join(["", *self._closing(), "", f"Written: {', '.join(map(str, written))}"]))

    def _closing(self) -> list[str]:
        judged = [summary_of(self._rows)] if len(self.sides) > 1 else []
        return [*judged, *(["", *self._remarks] if self._remarks else [])]

    def _write(self) -> None:
        lines = [*self._head, "", *table_lines(self._rows, self._names), "", *self._closing()]
        (self._folder / "table.md").write_text("\n".join(lines) + "\n")


def conditions(sides_of_run: Sequence[Side]) -> Iterator[str]:
    """Two lines: what ran, and on what machine."""
    versions = ", ".join(f"{sides.TITLES[side.name]} {side.version}" for side in sides_of_run)
    ratios = ", and in brackets flowrt's over the peer's: below 1 flowrt is faster"
    yield f"Medians{ratios if len(sides_of_run) > 1 else ''}. {versions}."
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    yield f"{when}, {processor()}, {cores} cores, load {load:.1f} before the run."


def processor() -> str:
    """The processor's name, as Linux knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def plot(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw ``rows`` where matplotlib is installed; the files that were written."""
    try:
        from benchmarks import plots
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)
        return []
    plots.draw_ratios(rows, path)
    return [path]


if __name__ == "__main__":
    sys.exit(main())
