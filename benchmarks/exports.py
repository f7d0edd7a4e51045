"""How long exports of large graphs take: ``python -m benchmarks.exports``. Prints a table with the bars.

One graph is made of blocks of layers of 11 operations, in scopes three deep; the other has many edges.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import flowrt as tf
from benchmarks.report import format_seconds

ROUNDS = 3
LAYERS_A_BLOCK = 50


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


def tangled(operations: int) -> tf.Graph:
    """A graph of about as many operations, each of which waits for 14 of the 300 before it."""
    draw = random.Random(1)
    with tf.Graph().as_default() as graph:
        made = [tf.placeholder(tf.float32, [4, 4], name="x")]
        for layer in range(operations // 10):
            with tf.name_scope(f"block_{layer // 20}/layer_{layer % 20}"):
                for _ in range(10):
                    chosen = draw.sample(made[-300:], min(len(made), 14))
                    with tf.control_dependencies(chosen):
                        made.append(tf.matmul(chosen[0], chosen[-1]))
    return graph


class Case(NamedTuple):
    """A graph of ``operations``, written to a file called ``name``; it shall take at most ``bar_s``, and have
    at most ``bar_mib``.
    """

    operations: int
    name: str
    depth: int | None
    bar_s: float | None = None
    bar_mib: float | None = None
    build: Callable[[int], tf.Graph] = layers


CASES = (
    Case(100_000, "graph.dot", 2, 3.0),
    Case(100_000, "graph.json", None),
    Case(100_000, "graph.pb", None),
    Case(20_000, "graph.html", None, 5.0),
    Case(10_000, "tangled.html", None, 6.0, 8.0, tangled),  # 140,000 edges
)


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
            graph = case.build(case.operations)
            seconds = seconds_of(case, graph, Path(directory))
            size = (Path(directory) / case.name).stat().st_size / 2**20
            missed += seconds > (case.bar_s or seconds) or size > (case.bar_mib or size)
            bar = "" if case.bar_s is None else format_seconds(case.bar_s)
            bar += "" if case.bar_mib is None else f", {case.bar_mib:g} MiB"
            count = len(graph.get_operations())
            print(
                f"| {count} | {case.name} | {format_seconds(seconds)} | {bar} | {size:.1f} MiB |", flush=True
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
