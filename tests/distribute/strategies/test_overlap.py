"""Gradients travel while the backward pass goes on: the last bucket is all that a step waits for.

Two workers in one process, a thread and a session each. In the backward pass of `LAYERS` layers the kernel
of each layer does not end before the bucket of the layer behind it has been summed, with a deadline, and then
sleeps: so a step comes to its end only if each bucket is sent off as soon as its gradient is there, and
nobody waits for it before the end. What is compared are the trace's own times, whose order does not depend on
how fast anything is.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives import JoinedGroup
from flowrt.graph import op_def
from flowrt.graph.op_def import LINEAR, NONDIFFERENTIABLE, define_op, sample
from tests.distribute.strategies.workers_of_one_process import SOON_S, Worker, at_once, joined_workers

LAYERS, WORKERS, WIDTH = 5, 2, 4


@final
class Sums:
    """When each worker's communicator began and ended to sum a bucket, in microseconds of the trace."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.spans: list[list[tuple[float, float]]] = [[] for _ in range(WORKERS)]

    def watch(self, joined: JoinedGroup) -> None:
        (member,), (rank,) = joined.members, joined.group.ranks
        all_reduce = member.communicator._all_reduce

        def counted(*arguments: Any) -> None:
            begin = time.time_ns() / 1000
            all_reduce(*arguments)
            with self._changed:
                self.spans[rank].append((begin, time.time_ns() / 1000))
                self._changed.notify_all()

        member.communicator._all_reduce = counted

    def wait_for(self, rank: int, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.spans[rank]) >= count, SOON_S / 2):
                raise tf.errors.DeadlineExceededError(f"bucket {count} was not sent off before the end")


@contextmanager
def backward_op(sums: Sums) -> Iterator[Any]:
    """``op(x, rank=, count=, seconds=)``: ``x``, so long after ``count`` buckets have been summed."""

    def kernel(xp: Any, x: Any, rank: int, count: int, seconds: float) -> Any:
        sums.wait_for(rank, count)
        time.sleep(seconds)
        return x + 0

    op = define_op(
        "BackwardForTest",
        "x: float64 -> float64",
        attrs="rank: int, count: int, seconds: float",
        shape=lambda s: [s.shapes[0]],
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=LINEAR,
        samples=lambda rng: [sample(rng.random(2), rank=0, count=0, seconds=0.0)],
        doc="A layer's backward kernel.",
    )
    try:
        yield op
    finally:
        del op_def._registry[op.name]


def training(strategy: Worker, rank: int, kernel: Any) -> tuple[Any, list[Any]]:
    """A step of the chain of layers, and its variables; the first layer of all has no kernel behind it."""
    with strategy.scope():
        weights = [
            tf.get_variable(f"w{n}", [WIDTH], tf.float64, tf.ones_initializer()) for n in range(LAYERS)
        ]
        optimizer = tf.train.GradientDescentOptimizer(0.125)

    def behind(x: Any, count: int) -> Any:
        """``x``, whose gradient takes a kernel that ends when ``count`` buckets have been summed."""

        @tf.custom_gradient
        def passed(x: Any) -> Any:
            return tf.identity(x), lambda dy: kernel(dy, rank=rank, count=count, seconds=0.01)

        return passed(x)

    def step() -> Any:
        hidden = tf.fill([WIDTH], tf.constant(1.0 + rank, tf.float64))
        for number, weight in enumerate(weights):
            hidden = behind(hidden, LAYERS - number) if number else hidden
            hidden = hidden * behind(weight, 0)
        loss = tf.reduce_sum(hidden)
        with tf.control_dependencies([optimizer.minimize(loss)]):
            return tf.identity(loss)

    return strategy.run(step), weights


@pytest.mark.parametrize("streams", [1, 2])
def test_only_the_last_bucket_is_waited_for(streams: int) -> None:
    sums = Sums()
    metadata = [tf.RunMetadata() for _ in range(WORKERS)]

    def work(joined: JoinedGroup) -> Any:
        (rank,) = joined.group.ranks
        with tf.Graph().as_default():
            train, weights = training(Worker(joined.group, bucket_bytes=WIDTH * 8), rank, kernel)
            config = tf.ConfigProto(inter_op_parallelism_threads=streams)
            with tf.Session(config=config) as session:
                session.run(tf.global_variables_initializer())
                traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
                session.run(train, options=traced, run_metadata=metadata[rank])
                return session.run(weights)

    with backward_op(sums) as kernel, joined_workers(WORKERS) as joined:
        for each in joined:
            sums.watch(each)
        found = at_once(work, joined)
    np.testing.assert_array_equal(found, np.full_like(found, 1 - 0.125 * (1.0 + 2.0)))
    for each, spans in zip(metadata, sums.spans, strict=True):
        check_trace(each, streams)
        check_exposed(each, spans[-LAYERS:])


def check_exposed(metadata: Any, spans: list[tuple[float, float]]) -> None:
    """Of the communication only that of the last bucket is left when the last kernel ends."""
    kernels = [node for node in slices_of(metadata) if " = BackwardForTest(" in node.timeline_label]
    computed = max(node.all_start_micros + node.all_end_rel_micros for node in kernels)
    exposed = [max(0.0, end - max(begin, computed)) for begin, end in spans]
    assert exposed[:-1] == [0.0] * (LAYERS - 1)
    assert sum(exposed) <= spans[-1][1] - spans[-1][0]


def slices_of(metadata: Any) -> list[Any]:
    return [node for device in metadata.step_stats.dev_stats for node in device.node_stats]


def check_trace(metadata: Any, streams: int) -> None:
    """All but the last bucket leave before the last kernel, no stream computes behind a wait, and the first
    bucket's update does not wait for the last.
    """
    slices = slices_of(metadata)
    kernels, starts, waits = (
        sorted([s for s in slices if f" = {op}(" in s.timeline_label], key=lambda s: s.all_start_micros)
        for op in ("BackwardForTest", "_GroupStart", "_GroupWait")
    )
    assert (len(kernels), len(starts), len(waits)) == (2 * LAYERS - 1, LAYERS, LAYERS)
    assert starts[-2].all_start_micros <= kernels[-1].all_start_micros
    if streams == 1:
        assert [s.node_name.split("/_native")[0] for s in starts] == [
            s.node_name.split("/_native")[0] for s in waits
        ]
    for kernel, wait in itertools.product(kernels, waits):
        assert kernel.thread_id != wait.thread_id or kernel.all_start_micros <= wait.all_start_micros
