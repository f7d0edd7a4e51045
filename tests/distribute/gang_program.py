"""A script: a task with a rank of a group, or a client of two such tasks.

    worker ADDRESSES INDEX              serves, and has joined the group
    client TARGET FACTOR STEPS GATED    runs steps that add up over the group; prints a line before them and
                                        waits for one; then those with wrong results, and the time of each

A gated step waits for an element of a queue in task 0 before its collective.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import flowrt as tf
from flowrt.distribute.collectives import Group, JoinedGroup, all_reduce, join

SIZE = 2
ELEMENTS = 1000


class Program(NamedTuple):
    """A step that adds up ``x * (rank + 1)`` over the group, on its tasks; `wrong` tells what is wrong."""

    x: tf.Tensor
    results: list[tf.Tensor]
    clock: tf.Tensor
    """Number of steps of all sessions that have begun."""
    open_gate: tf.Operation

    def wrong(self, session: tf.Session, value: float) -> list[float]:
        """The results of a step that are not its own; [] if it is right."""
        return self.timed(session, value)[0]

    def timed(self, session: tf.Session, value: float) -> tuple[list[float], int]:
        """As `wrong`, and what the clock said."""
        *results, time = session.run([*self.results, self.clock], {self.x: value})
        return [float(result) for result in results if result != 3 * value], int(time)


def on(task: int) -> str:
    return f"/job:worker/task:{task}/device:CPU:0"


def build(is_gated: bool = False, lowering: str = "native") -> Program:
    """The same names in every program: nothing but its step tells a collective from another program's."""
    x = tf.placeholder(tf.float64, [])
    with tf.device(on(0)):
        clock = tf.get_variable("clock", [], tf.int64, initializer=tf.zeros_initializer())
        queue = tf.FIFOQueue(10, [tf.float64], [[]], shared_name="gate")
        open_gate = queue.enqueue(tf.constant(0.0, tf.float64))
        gate = queue.dequeue() if is_gated else tf.constant(0.0, tf.float64)
        time = tf.assign_add(clock, 1)
    values = []
    for rank in range(SIZE):
        with tf.device(on(rank)), tf.control_dependencies([time]):
            values.append(tf.fill([ELEMENTS], x * (rank + 1) + gate))
    group = Group("gang", SIZE, tuple(range(SIZE)))
    results = []
    for rank, total in enumerate(all_reduce(values, group=group, lowering=lowering)):
        with tf.device(on(rank)):
            results += [tf.reduce_min(total), tf.reduce_max(total)]
    return Program(x, results, time, open_gate)


def join_here(addresses: Sequence[str], *ranks: int) -> JoinedGroup:
    return join(Group("gang", SIZE, ranks), addresses)


def serve(addresses: list[str], index: int) -> None:
    server = tf.train.Server({"worker": addresses}, "worker", index)
    with join_here(addresses, index):
        server.join()


def run_client(target: str, factor: float, steps: int, is_gated: bool) -> None:
    program = build(is_gated)
    with tf.Session(target) as session:
        session.run(tf.report_uninitialized_variables())
        print("begins", flush=True)
        sys.stdin.readline()
        found = [program.timed(session, factor * (step + 1)) for step in range(steps)]
    wrong = [(step, results) for step, (results, _) in enumerate(found) if results]
    print(json.dumps([wrong, [time for _, time in found]]), flush=True)


if __name__ == "__main__":
    mode, first, *rest = sys.argv[1:]
    if mode == "worker":
        serve(json.loads(first), int(rest[0]))
    else:
        run_client(first, float(rest[0]), int(rest[1]), rest[2] == "gated")
