"""A worker that is slow: ``python -m benchmarks.straggler``. Four workers train with a parameter server, and
a fifth that sleeps 300 ms in every step; with a backup worker nobody waits for it, in sync mode all do.

Prints what a step takes the four, how many updates there were, and how many gradients came too late for one.
Each task is a process: ``python -m benchmarks.straggler CLUSTER WORKER MODE SLEEP_S`` is a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from benchmarks.cluster import reserve_addresses
from benchmarks.report import format_seconds

FAST, STEPS, SLEEP_S, SIZE = 4, 60, 0.3, 64
RUNS: Mapping[str, tuple[Any, float]] = {
    "backup(1), no straggler": (("backup", 1), 0.0),
    "backup(1)": (("backup", 1), SLEEP_S),
    "sync": ("sync", SLEEP_S),
}


class Measured(NamedTuple):
    """``step_s`` is the fast workers' median."""

    step_s: float
    updates: int
    dropped: int


def work(cluster: Mapping[str, Sequence[str]], worker: int, mode: Any, sleep_s: float) -> Measured:
    """Be ``worker``: the last one is the straggler, which goes on until the others have made their steps."""
    spec = tf.train.ClusterSpec(dict(cluster))
    server = tf.train.Server(spec, "worker", worker)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=worker)
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver, mode=mode)
    with strategy.scope():
        weights = tf.get_variable("weights", [SIZE, SIZE])
        arrived = tf.get_variable("arrived", [], tf.int32, tf.zeros_initializer(), trainable=False)
        count, rows = tf.train.get_or_create_global_step(), tf.constant(np.ones([8, SIZE], np.float32))
        arrive = arrived.assign_add(1, read_value=False)

        def minimize() -> Any:
            late = tf.py_func(lambda given: _after(sleep_s, given), [rows], tf.float32)
            late.set_shape(rows.shape)
            loss = tf.reduce_mean(tf.square(tf.matmul(late, weights)))
            return tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=count)

        train = strategy.run(minimize)
        status = strategy.shard_status()
    times = []
    with strategy.training_session(server.target, is_chief=worker == 0) as session:
        session.run(arrive)
        while session.run(arrived) <= FAST:
            time.sleep(0.01)
        while len(times) < STEPS if worker < FAST else session.run(count) < STEPS:
            start = time.perf_counter()
            session.run(train)
            times.append(time.perf_counter() - start)
        dropped = sum(int(each[4]) for each in session.run(status))
        return Measured(median(times or [0.0]), int(session.run(count)), dropped)


def _after(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def measure(mode: Any, sleep_s: float) -> Measured:
    """One run, each task in a process."""
    with ExitStack() as stack:
        addresses = reserve_addresses(FAST + 2, stack)
        cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
        server = [sys.executable, "-m", "flowrt.cli.worker", "--cluster", cluster]
        _start(stack, [*server, "--job", "ps", "--task", "0"])
        workers = [_worker(cluster, number, mode, sleep_s) for number in range(FAST + 1)]
        started = [_start(stack, command) for command in workers]
        found = [Measured(*json.loads(process.communicate()[0])) for process in started]
    return Measured(median([each.step_s for each in found[:FAST]]), found[-1].updates, found[-1].dropped)


def _worker(cluster: str, number: int, mode: Any, sleep_s: float) -> list[str]:
    own_s = sleep_s if number == FAST else 0.0
    return [sys.executable, "-m", "benchmarks.straggler", cluster, str(number), json.dumps(mode), str(own_s)]


def _start(stack: ExitStack, command: Sequence[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    return process


def table_lines(measured: Mapping[str, Measured]) -> Iterator[str]:
    """Markdown."""
    yield "| mode | a fast worker's step | to the first | updates | late gradients |"
    yield "|---|---|---|---|---|"
    first = next(iter(measured.values())).step_s
    for name, (step_s, updates, dropped) in measured.items():
        yield f"| {name} | {format_seconds(step_s)} | {step_s / first:.2f} | {updates} | {dropped} |"


def main(arguments: Sequence[str]) -> int:
    if arguments:
        cluster, worker, mode, sleep_s = arguments
        print(json.dumps(work(json.loads(cluster), int(worker), json.loads(mode), float(sleep_s))))
        return 0
    print(f"load {os.getloadavg()[0]:.1f} before the run, {len(os.sched_getaffinity(0))} cores")
    print("\n".join(table_lines({name: measure(*how) for name, how in RUNS.items()})))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
