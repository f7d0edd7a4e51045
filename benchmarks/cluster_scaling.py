"""How an empty step grows with the tasks it reaches: ``python -m benchmarks.cluster_scaling``. 1 to 16 local
workers, all on this machine's cores; prints a table and the line that fits best.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from statistics import linear_regression

import flowrt as tf
from benchmarks.cluster import JOB, local_cluster
from benchmarks.report import format_seconds
from benchmarks.scaling import Points
from benchmarks.timing import median_s

WORKERS = (1, 2, 4, 8, 16)
UNOPTIMISED = tf.ConfigProto(  # equal operations that do nothing would become one
    graph_options=tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0))
)


def time_null_step(workers: int) -> float:
    """Seconds of a step that does nothing on each of ``workers`` tasks."""
    with local_cluster(tf, workers) as target, tf.Graph():
        nothing = []
        for task in range(workers):
            with tf.device(f"/job:{JOB}/task:{task}"):
                nothing.append(tf.no_op())
        everywhere = tf.group(nothing)
        with tf.Session(target, config=UNOPTIMISED) as session:
            return median_s(lambda: session.run(everywhere))


def table_lines(points: Points) -> Iterator[str]:
    """Markdown, and a line with the fit."""
    yield f"| local workers | {' | '.join(str(workers) for workers, _ in points)} |"
    yield "|---" * (len(points) + 1) + "|"
    yield f"| null step | {' | '.join(format_seconds(seconds) for _, seconds in points)} |"
    fit = linear_regression(*zip(*points, strict=True))
    yield ""
    yield f"{format_seconds(fit.intercept)} and {format_seconds(fit.slope)} a worker"


def main() -> int:
    print(f"load {os.getloadavg()[0]:.1f} before the run, {len(os.sched_getaffinity(0))} cores")
    print("\n".join(table_lines([(workers, time_null_step(workers)) for workers in WORKERS])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
