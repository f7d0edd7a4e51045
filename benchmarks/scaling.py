"""How flowrt's cost grows: ``python -m benchmarks.scaling``. Building, compiling and running graphs of 100 to
1,000,000 operations; a step against the size of its tensors. Writes a table with the fitted slopes and a
plot. Of nightly size: the largest graph takes about 5 minutes and 3 GB.

A slope is the exponent of a power law, from least squares of log seconds on log size: 1 is linear.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import linear_regression
from typing import Any

import flowrt as tf
from benchmarks.inputs import floats
from benchmarks.report import format_seconds
from benchmarks.timing import median_s
from flowrt.executor.plan.tiers import LARGE, RUNS_BEFORE_COMPILING, RUNS_BEFORE_LARGE, compile_beside

OPS = (100, 1_000, 10_000, 100_000, 1_000_000)
ELEMENTS = tuple(4**k for k in range(2, 13))  # 64 B to 64 MiB of float32
ARITHMETIC_FROM = 1 << 16  # elements: below, the cost of starting a step shows and the slope says nothing

Points = Sequence[tuple[float, float]]
"""(size, seconds)"""


def slope(points: Points) -> float:
    """The exponent b of the power law ``a size**b`` that fits best in logarithms. NaN below two sizes."""
    if len({size for size, _ in points}) < 2:
        return math.nan
    sizes, seconds = zip(*points, strict=True)
    return linear_regression(list(map(math.log, sizes)), list(map(math.log, seconds))).slope


def time_graph(ops: int) -> dict[str, float]:
    """Seconds to build, compile and run a graph of about ``ops`` operations: 16 lanes that mix. To compile is
    what the first run takes beyond a later one; then another time with one operation more.
    """
    start = time.perf_counter()
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        lanes = [x * float(i) for i in range(2, 18)]  # all different: equal nodes become one
        for i in range(ops // 2):
            lanes[i % 16] = tf.add(lanes[i % 16], lanes[(7 * i + 1) % 16]) * 0.5
        total = tf.add_n(lanes)
    built = time.perf_counter()
    with tf.Session(graph=graph) as session:
        feed = {x: floats(64)}
        session.run(total, feed)
        ran = time.perf_counter()
        for _ in range(RUNS_BEFORE_LARGE if ops > LARGE else RUNS_BEFORE_COMPILING):
            session.run(total, feed)
        wait_for_loops(ops)
        run = median_s(lambda: session.run(total, feed), warm_s=1.0)
        with graph.as_default():
            more = total * 2.0
        extended = time.perf_counter()
        session.run([total, more], feed)
        again = time.perf_counter() - extended
    return {
        "build": built - start,
        "compile": ran - built - run,
        "compile with one more": again - run,
        "run": run,
    }


def wait_for_loops(ops: int) -> None:
    """Until the loops of a graph that has run are compiled."""
    compiled = threading.Event()
    compile_beside(compiled.set, ops)
    compiled.wait(600)


def _elementwise(elements: int) -> tuple[Any, dict[Any, Any]]:
    x = tf.placeholder(tf.float32, [elements])
    return tf.reduce_sum(tf.tanh(x) * x + 1.0), {x: floats(elements)}


def _matmul(elements: int) -> tuple[Any, dict[Any, Any]]:
    side = math.isqrt(elements)
    x = tf.placeholder(tf.float32, [side, side])
    return tf.matmul(x, x), {x: floats(side, side)}


PROGRAMS = {"sum(x tanh(x) + 1)": _elementwise, "matmul of square matrices": _matmul}


def time_step(program: str, elements: int) -> float:
    """Seconds a step of ``program`` takes on tensors of ``elements`` floats."""
    with tf.Graph().as_default() as graph:
        fetch, feed = PROGRAMS[program](elements)
    with tf.Session(graph=graph) as session:
        return median_s(lambda: session.run(fetch, feed), at_least_s=0.3, warm_s=0.3)


def time_graphs(sizes: Iterable[int]) -> dict[str, Points]:
    """By measure."""
    found: dict[str, list[tuple[float, float]]] = {}
    for ops in sizes:
        for measure, seconds in time_graph(ops).items():
            found.setdefault(measure, []).append((ops, seconds))
    return dict(found)


def table_lines(quantity: str, curves: Mapping[str, Points], fit_from: int) -> Iterator[str]:
    """Markdown: a row a curve, a column a size, and the slope from ``fit_from`` up."""
    sizes = [size for size, _ in next(iter(curves.values()))]
    yield f"| {quantity} | {' | '.join(f'{size:,.0f}' for size in sizes)} | slope from {fit_from:,} |"
    yield "|---" * (len(sizes) + 2) + "|"
    for name, points in curves.items():
        cells = " | ".join(format_seconds(seconds) for _, seconds in points)
        yield f"| {name} | {cells} | {slope([p for p in points if p[0] >= fit_from]):.2f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--max-ops", type=int, default=OPS[-1], help="largest graph (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.max_ops < OPS[0]:
        parser.error(f"--max-ops: expected {OPS[0]} or more; got {options.max_ops}")
    graphs = time_graphs(takewhile(lambda ops: ops <= options.max_ops, OPS))
    steps = {name: [(n, time_step(name, n)) for n in ELEMENTS] for name in PROGRAMS}
    lines = [*table_lines("operations", graphs, OPS[0]), ""]
    lines += table_lines("elements", steps, ARITHMETIC_FROM)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    try:
        from benchmarks import plots
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)
        return 0
    plots.draw_scaling({"operations": graphs, "elements": steps}, options.out / "scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
