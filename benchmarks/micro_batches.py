"""The time of a pipeline's step by the number of micro-batches: it falls, and then rises again.

    python -m benchmarks.micro_batches [--counts 1,2,4,8,16,32] [--stages 2] [--width 128] [--rounds 3]

Trains the GPT of ``examples/gpt_pipeline.py`` on the CPU devices of one process, with a thread for each, and
prints a Markdown table: the fastest step, its CPU time, and the bubble by the formula. Each number of
micro-batches, and one device, is a process of its own; all take turns in each round, as the machine may be
shared, and the fastest of all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

WARM, TIMED = 4, 12
"""Steps of a process."""

LETTERS = 32


class Took(NamedTuple):
    """Seconds of the fastest step, and of CPU time of the step that took least of it."""

    step: float
    cpu: float


def measure(micro_batches: int, stages: int, width: int) -> Took:
    """Train here; on one device, without a pipeline, if there are 0 ``micro_batches``."""
    import numpy as np

    import flowrt as tf
    from examples.gpt_pipeline import BATCH, LENGTH, model

    count = stages if micro_batches else 1
    config = tf.ConfigProto(device_count={"CPU": count}, intra_op_parallelism_threads=1)
    strategy = tf.distribute.get_strategy()
    if micro_batches:
        mesh = tf.distribute.Mesh([("pp", stages)])
        strategy = tf.distribute.PipelineStrategy(mesh, micro_batches=micro_batches)
    with strategy.scope():
        inputs, targets, loss, train = model(LETTERS, width, count)
    rng = np.random.default_rng(0)
    feed = {each: rng.integers(0, LETTERS, (BATCH, LENGTH)) for each in (inputs, targets)}
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        found = []
        for _ in range(WARM + TIMED):
            begun, used = time.perf_counter(), time.process_time()
            session.run([loss, train], feed)
            found.append(Took(time.perf_counter() - begun, time.process_time() - used))
    return Took(*map(min, zip(*found[WARM:], strict=True)))


def measure_in_process(micro_batches: int, stages: int, width: int) -> Took:
    """`measure` in a process that has one thread per device, and compiles no loops meanwhile."""
    given = ["--process", str(micro_batches), "--stages", str(stages), "--width", str(width)]
    environ = {**os.environ, "FLOWRT_JIT": "off", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.micro_batches", *given]
    return Took(*json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout))


def table(found: dict[int, Took], stages: int) -> list[str]:
    """The lines of the table, of ``found`` by the number of micro-batches."""
    lines = [
        "| micro-batches | step, ms | CPU time of a step, ms | bubble by the formula |",
        "|---|---|---|---|",
    ]
    for count, took in sorted(found.items()):
        bubble = (stages - 1) / (count + stages - 1)
        lines.append(f"| {count} | {took.step * 1e3:.0f} | {took.cpu * 1e3:.0f} | {bubble * 100:.0f} % |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro_batches", description=__doc__)
    parser.add_argument("--counts", default="1,2,4,8,16,32", help="numbers of micro-batches")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", type=int, metavar="COUNT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        print(json.dumps(measure(options.process, options.stages, options.width)))
        return
    counts = [0, *map(int, options.counts.split(","))]
    found: dict[int, Took] = {}
    for number in range(options.rounds):
        for count in counts:
            took = measure_in_process(count, options.stages, options.width)
            found[count] = Took(*map(min, zip(took, found.get(count, took), strict=True)))
            print(f"round {number}, {count or 'one device'}: {took.step * 1e3:.0f} ms", file=sys.stderr)
    alone = found.pop(0)
    print("\n".join(table(found, options.stages)))
    print(f"\nOn one device a step needs {alone.step * 1e3:.0f} ms, {alone.cpu * 1e3:.0f} ms of CPU time.")


if __name__ == "__main__":
    main()
