"""How long exports of large graphs take: ``python -m benchmarks.exports``. Prints a table with the bars.

The graph is made of blocks of layers of 11 operations, in scopes three deep.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import flowrt as tf
from benchmarks.report import format_seconds

ROUNDS = 3
LAYERS_A_BLOCK = 50


class Case(NamedTuple):
    """A graph of ``operations``, written to a file called ``name``; it shall take at most ``bar_s``."""

    operations: int
    name: str
    depth: int | None
    bar_s: float | None = None


CASES = (
    Case(100_000, "graph.dot", 2, 3.0),
    Case(100_000, "graph.json", None),
    Case(100_000, "graph.pb", None),
    Case(20_000, "graph.html", None, 5.0),
)


def layers(operations: int) -> tf.Graph:
    """A graph of about as many operations."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [8, 8], name="x")
        for layer in range(operations // 16):
            scope = f"block_{layer // LAYERS_A_BLOCK}/layer_{layer % LAYERS_A_BLOCK}/dense"
            with tf.name_scope(scope):
                y = tf.nn.relu(tf.matmul(x, x) + 1.0)
                for _ in range(4):
                    y = tf.sin(y) * tf.cos(x)
                x = y
    return graph


def seconds_of(case: Case, graph: tf.Graph, directory: Path) -> float:
    """The best of `ROUNDS`: what else runs on the machine only adds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        tf.viz.export(graph, directory / case.name, depth=case.depth)
        best = min(best, time.perf_counter() - start)
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a bar was missed."""
    argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__).parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f} before the run, {len(os.sched_getaffinity(0))} cores\n")
    print("| operations | file | time | bar | size |\n|---|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES:
            graph = layers(case.operations)
            seconds = seconds_of(case, graph, Path(directory))
            missed += case.bar_s is not None and seconds > case.bar_s
            bar = "" if case.bar_s is None else format_seconds(case.bar_s)
            size = (Path(directory) / case.name).stat().st_size / 2**20
            count = len(graph.get_operations())
            print(
                f"| {count} | {case.name} | {format_seconds(seconds)} | {bar} | {size:.1f} MiB |", flush=True
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
