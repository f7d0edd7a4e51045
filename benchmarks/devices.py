"""Devices: ``python -m benchmarks.devices``. What memory, its plan, streams and feeds cost, each beside its
bar. Exits with 1 if a bar is missed.

Training steps run on the null device, which plans as a GPU and computes nothing, and on the CPU. What they
ask of a device's pool (the arena of their plan, results that they hand out, and without a plan every tensor)
is recorded, and asked again of a pool that has nothing yet.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import flowrt as tf
from benchmarks import allocator
from benchmarks.nets import NETS, Step, digits_cnn, lenet
from flowrt.executor.buffers.memory_plan import MemoryPlan
from flowrt.executor.ends.feeds import FEED_COUNTS
from flowrt.executor.session import session as session_module
from flowrt.graph import op_def
from flowrt.graph.op_def import LINEAR, NONDIFFERENTIABLE, OpDef, define_op, sample

MAX_PLAN_RATIO = 1.1
RECORDED_STEPS = 3
SLEEP_S = 0.2
MAX_SLEEPS_MS = 230.0
FEED_BYTES = 64 << 20
MAX_FEED_KIB = 64.0


class Row(NamedTuple):
    """One line of the table. ``bar`` is the largest figure that is good, None where none is set."""

    name: str
    figure: float
    unit: str
    bar: float | None = None

    @property
    def is_met(self) -> bool:
        return self.bar is None or self.figure <= self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{self.bar:g}"
        figure = f"{self.figure:.4g} {self.unit}".strip() + ("" if self.is_met else " **above**")
        return f"| {self.name} | {figure} | {bar} |"


# --- measurements


def memory_rows() -> Iterator[Row]:
    seconds = allocator.median_of(3, lambda: allocator.time_pairs(1000))
    yield Row("BFC: 100,000 pairs of allocate and deallocate", seconds, "s", allocator.MAX_SECONDS)
    for case in allocator.CASES:
        if case.has_bar:
            result = allocator.replay(allocator.trace(case, allocator.SEEDS[0]))
            yield Row(f"BFC: reserved/live, {case.name}", allocator.ratio(result), "", allocator.MAX_RATIO)


class Measured(NamedTuple):
    """The arena over the least that it could be, and what reserved over live memory comes to in a replay."""

    plan: float
    reserved: float


def step_rows() -> Iterator[Row]:
    for name, build in NETS.items():
        for device in ("/device:NULL:0", "/cpu:0"):
            measured = measure(build, device)
            yield Row(f"plan/lower bound, {name} on {device}", measured.plan, "", MAX_PLAN_RATIO)
            yield _reserved_row(f"{name} on {device}", measured)
    for name, of_batch in {"LeNet": lenet, "digits CNN": digits_cnn}.items():
        measured = measure_unplanned(functools.partial(of_batch, None), "/cpu:0")
        yield _reserved_row(f"{name} of any batch on /cpu:0", measured)


def _reserved_row(name: str, measured: Measured) -> Row:
    return Row(f"BFC: reserved/live, recorded {name}", measured.reserved, "", allocator.MAX_RATIO)


def measure(build: Callable[[], Step], device: str) -> Measured:
    """`RECORDED_STEPS` steps behind the initialization. Compiled loops, which come when they are ready and
    bring an arena of their own, are left out.
    """
    config = tf.ConfigProto(device_count={"NULL": 1}, allow_soft_placement=True)
    with tf.Graph().as_default(), tf.device(device), patch.dict(os.environ, FLOWRT_JIT="off"):
        step = build()
        with tf.Session(config=config) as session:
            pool = session.devices[-1 if "NULL" in device else 0].pool
            calls = allocator.record(pool)
            session.run(tf.global_variables_initializer())
            for _ in range(RECORDED_STEPS):
                fetched = session.run(step.fetches, step.feed)
            del fetched
            plans = [plan for plan in plans_of(session) if plan.lower_bound]
    largest = max(plans, key=lambda plan: plan.lower_bound)
    return Measured(largest.nbytes / largest.lower_bound, allocator.ratio(allocator.replay(calls)))


def measure_unplanned(build: Callable[[], Step], device: str) -> Measured:
    """`measure`, but no shape of a batch gets a plan of its own."""
    with patch.object(session_module, "MAX_SHAPES", 0):
        return measure(build, device)


def plans_of(session: Any) -> list[MemoryPlan]:
    """The memory plans of everything that ``session`` has run."""
    plans = [plan for request in session._requests.values() for plan in request.plans.values()]
    return [part.buffers.memory for plan in plans for part in plan.partitions.values()]


@contextmanager
def sleep_op() -> Iterator[OpDef]:
    """``op(x, seconds=)`` sleeps, then gives ``x``."""

    def kernel(xp: Any, x: Any, seconds: float) -> Any:
        time.sleep(seconds)
        return x + 0

    op = define_op(
        "SleepForBenchmark",
        "x: float32 -> float32",
        attrs="seconds: float",
        shape=lambda s: [s.shapes[0]],
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=LINEAR,
        samples=lambda rng: [sample(rng.random(2), seconds=0.0)],
        doc="Takes time.",
    )
    try:
        yield op
    finally:
        del op_def._registry["SleepForBenchmark"]


def stream_rows() -> Iterator[Row]:
    for device, clock in (("/cpu:0", _real_clock), ("/device:NULL:0", _virtual_clock)):
        with sleep_op() as sleep, tf.Graph().as_default(), tf.device(device):
            x = tf.placeholder(tf.float32, [2])
            both = sleep(x, seconds=SLEEP_S) + sleep(x + 1.0, seconds=SLEEP_S)
            config = tf.ConfigProto(device_count={"NULL": 1}, inter_op_parallelism_threads=2)
            with tf.Session(config=config) as session:
                session.run(both, {x: [1, 2]})
                start = clock(session)
                session.run(both, {x: [1, 2]})
                milliseconds = (clock(session) - start) * 1000
        yield Row(f"two sleeps of 200 ms on two streams, {device}", milliseconds, "ms", MAX_SLEEPS_MS)


def _real_clock(session: Any) -> float:
    return time.perf_counter()


def _virtual_clock(session: Any) -> float:
    return session.devices[-1].executor.now_s


def feed_rows() -> Iterator[Row]:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [FEED_BYTES // 4])
        total = tf.reduce_sum(x)
        with tf.Session() as session:
            step, value = session.make_callable(total, [x]), np.ones(FEED_BYTES // 4, np.float32)
            step(value)
            FEED_COUNTS.clear()
            pool = session.devices[0].pool
            pool.clear_stats()
            tracemalloc.start()
            step(value)
            taken = tracemalloc.get_traced_memory()[1] + pool.stats().peak_bytes_in_use
            tracemalloc.stop()
            copies = 1 - FEED_COUNTS["taken"]
            milliseconds = allocator.median_of(5, lambda: _seconds(step, value)) * 1000
            alone = allocator.median_of(5, lambda: _seconds(np.add.reduce, value)) * 1000
    yield Row("feed of 64 MiB: copies", copies, "", 0)
    yield Row("feed of 64 MiB: new memory in the step", taken / 1024, "KiB", MAX_FEED_KIB)
    yield Row("feed of 64 MiB: the step, which sums it", milliseconds, "ms")
    yield Row("feed of 64 MiB: the sum without a session", alone, "ms")


def _seconds(call: Callable[[Any], Any], value: Any) -> float:
    start = time.perf_counter()
    call(value)
    return time.perf_counter() - start


def main() -> int:
    print("| measure | figure | bar |\n|---|---|---|")
    is_met = True
    for rows in (memory_rows, step_rows, stream_rows, feed_rows):
        for row in rows():
            print(row, flush=True)
            is_met &= row.is_met
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
