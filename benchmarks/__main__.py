"""Run the cases on flowrt and, with ``--peers``, on TensorFlow in turn, and print a Markdown table of medians
and ratios.

The machine may be shared and noisy: both sides run in the same minutes, A B A B, and the ratio of medians
counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.cases import CASES

WORKER = Path(__file__).resolve().parent / "worker.py"
PEER = "tensorflow.compat.v1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; all if none is named"
    )
    parser.add_argument(
        "--peers", type=Path, help="an environment (folder or interpreter) that has TensorFlow"
    )
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side (default 2)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    peer = None if arguments.peers is None else _interpreter(parser, arguments.peers)
    print("| case | measure | flowrt | TensorFlow | ratio | bar |\n|---|---|---|---|---|---|")
    for name in arguments.cases or CASES:
        for line in _rows(name, peer, arguments.rounds):
            print(line, flush=True)
    return 0


def _interpreter(parser: argparse.ArgumentParser, path: Path) -> Path:
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.exists():
        parser.error(f"--peers: expected an environment or an interpreter; got {path}")
    return found


def _rows(name: str, peer: Path | None, rounds: int) -> list[str]:
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for _ in range(rounds):
        _collect(ours, _measure(Path(sys.executable), "flowrt", name))
        if peer is not None:
            _collect(theirs, _measure(peer, PEER, name))
    rows = []
    for measure, values in ours.items():
        mine = median(values)
        bar = CASES[name].bars.get(measure)
        limit = "" if bar is None else f"{bar:g}"
        if measure in theirs:
            other = median(theirs[measure])
            ratio = f"{mine / other:.3f}" + ("" if bar is None or mine / other <= bar else " **above**")
            rows.append(f"| {name} | {measure} | {mine:.4g} | {other:.4g} | {ratio} | {limit} |")
        else:
            rows.append(f"| {name} | {measure} | {mine:.4g} | | | {limit} |")
    return rows


def _measure(interpreter: Path, module: str, case: str) -> dict[str, float]:
    command = [str(interpreter), str(WORKER), module, case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        sys.exit(f"{case} on {module} failed: {last[0]}")
    measures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["measures"]
    return measures


def _collect(into: dict[str, list[float]], measures: dict[str, float]) -> None:
    for measure, value in measures.items():
        into.setdefault(measure, []).append(value)


if __name__ == "__main__":
    sys.exit(main())
