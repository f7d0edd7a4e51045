"""Devices: ``python -m benchmarks.devices``. What memory, its plan, streams and feeds cost, each beside its
bar. Exits with 1 if a bar is missed.

`NETS` are training steps whose memory plans are looked at; they run on the null device, which plans as a GPU
and computes nothing, and on the CPU.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from benchmarks import allocator
from examples.char_lm import CONTEXT, Model
from flowrt.executor.feeds import FEED_COUNTS
from flowrt.executor.memory_plan import MemoryPlan
from flowrt.graph import op_def
from flowrt.graph.op_def import LINEAR, NONDIFFERENTIABLE, OpDef, attr_float, define_op, sample

MAX_PLAN_RATIO = 1.1
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


# --- training steps


class Step(NamedTuple):
    """What to fetch and what to feed."""

    fetches: list[Any]
    feed: dict[Any, Any]


def _train(loss: Any, optimizer: Any, feed: dict[Any, Any]) -> Step:
    return Step([optimizer.minimize(loss), loss], feed)


def _weights(*shape: int) -> Any:
    return tf.Variable(tf.random_normal(shape, stddev=0.05))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def deep_mlp(layers: int = 1000) -> Step:
    """Layers of 64 x 64 with gradient descent, batch 64."""
    x = h = tf.placeholder(tf.float32, [64, 64])
    for _ in range(layers):
        h = tf.nn.relu(tf.matmul(h, _weights(64, 64)) + tf.Variable(tf.zeros([64])))
    loss = tf.reduce_mean(tf.square(h))
    return _train(loss, tf.train.GradientDescentOptimizer(0.1), {x: np.ones((64, 64))})


def mlp_adam() -> Step:
    """784-512-512-10 with Adam, batch 128."""
    x, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
    h = x
    for inputs, outputs in pairwise((784, 512, 512, 10)):
        h = tf.matmul(h, _weights(inputs, outputs)) + tf.Variable(tf.zeros([outputs]))
        h = h if outputs == 10 else tf.nn.relu(h)
    feed = {x: np.ones((128, 784)), labels: np.arange(128) % 10}
    return _train(_cross_entropy(h, labels), tf.train.AdamOptimizer(), feed)


def lenet() -> Step:
    """Two convolutions and two dense layers with gradient descent, 64 images of 28 x 28."""
    x, labels = tf.placeholder(tf.float32, [64, 28, 28, 1]), tf.placeholder(tf.int64, [64])
    h = x
    for shape in ((5, 5, 1, 32), (5, 5, 32, 64)):
        h = tf.nn.relu(tf.nn.conv2d(h, _weights(*shape), strides=[1, 1, 1, 1], padding="SAME"))
        h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    h = tf.nn.relu(tf.matmul(tf.reshape(h, [64, 3136]), _weights(3136, 256)))
    loss = _cross_entropy(tf.matmul(h, _weights(256, 10)), labels)
    feed = {x: np.ones((64, 28, 28, 1)), labels: np.arange(64) % 10}
    return _train(loss, tf.train.GradientDescentOptimizer(0.01), feed)


def digits_cnn() -> Step:
    """The net of ``examples/digits_cnn.py``, 64 images of 8 x 8."""
    x, labels = tf.placeholder(tf.float32, [64, 8, 8, 1]), tf.placeholder(tf.int64, [64])
    h = tf.layers.conv2d(x, 32, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.conv2d(h, 32, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.max_pooling2d(h, 2, 2)
    h = tf.layers.conv2d(h, 64, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.flatten(tf.layers.max_pooling2d(h, 2, 2))
    logits = tf.layers.dense(tf.layers.dense(h, 128, activation=tf.nn.relu), 10)
    feed = {x: np.ones((64, 8, 8, 1)), labels: np.arange(64) % 10}
    return _train(_cross_entropy(logits, labels), tf.train.AdamOptimizer(), feed)


def char_lm() -> Step:
    """The model of ``examples/char_lm.py``, 90 characters, batch 128."""
    model = Model(90)
    feed = {model.contexts: np.zeros((128, CONTEXT)), model.targets: np.zeros(128)}
    return Step([model.train, model.bits], feed)


def gpt(layers: int = 4, width: int = 64, heads: int = 4, batch: int = 8, length: int = 32) -> Step:
    """A decoder of ``layers`` blocks with Adam; attention without its mask, which takes no memory."""
    tokens, targets = (tf.placeholder(tf.int32, [batch, length]) for _ in range(2))
    h = tf.reshape(tf.nn.embedding_lookup(_weights(90, width), tokens), [-1, width])

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [batch, length, heads, -1]), [0, 2, 1, 3])

    for _ in range(layers):
        x = _normalised(h)
        query, key, value = (split(tf.matmul(x, _weights(width, width))) for _ in range(3))
        found = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
        joined = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), [-1, width])
        h = h + tf.matmul(joined, _weights(width, width))
        inner = tf.nn.relu(tf.matmul(_normalised(h), _weights(width, 4 * width)))
        h = h + tf.matmul(inner, _weights(4 * width, width))
    loss = _cross_entropy(tf.matmul(_normalised(h), _weights(width, 90)), tf.reshape(targets, [-1]))
    return _train(loss, tf.train.AdamOptimizer(), dict.fromkeys((tokens, targets), np.zeros((batch, length))))


def _normalised(x: Any) -> Any:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.Variable(tf.ones([int(x.shape[-1])]))
    return centred * tf.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-5) * scale


NETS: dict[str, Callable[[], Step]] = {
    "MLP of 1,000 layers": deep_mlp,
    "MLP with Adam": mlp_adam,
    "LeNet": lenet,
    "digits CNN": digits_cnn,
    "character model": char_lm,
    "GPT, 4 blocks": gpt,
}


def plans_of(session: Any) -> list[MemoryPlan]:
    """The memory plans of everything that ``session`` has run."""
    plans = [plan for request in session._requests.values() for plan in request.plans.values()]
    return [part.places.memory for plan in plans for part in plan.partitions.values()]


# --- measurements


def memory_rows() -> Iterator[Row]:
    seconds = allocator.median_of(3, lambda: allocator.time_pairs(1000))
    yield Row("BFC: 100,000 pairs of allocate and deallocate", seconds, "s", allocator.MAX_SECONDS)
    for case in allocator.CASES:
        if case.has_bar:
            result = allocator.replay(allocator.trace(case, allocator.SEEDS[0]))
            yield Row(f"BFC: reserved/live, {case.name}", allocator.ratio(result), "", allocator.MAX_RATIO)


def plan_rows() -> Iterator[Row]:
    for name, build in NETS.items():
        for device in ("/device:NULL:0", "/cpu:0"):
            yield Row(f"plan/lower bound, {name} on {device}", plan_ratio(build, device), "", MAX_PLAN_RATIO)


def plan_ratio(build: Callable[[], Step], device: str) -> float:
    config = tf.ConfigProto(device_count={"NULL": 1}, allow_soft_placement=True)
    with tf.Graph().as_default(), tf.device(device):
        step = build()
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            session.run(step.fetches, step.feed)
            largest = max(plans_of(session), key=lambda plan: plan.lower_bound)
    return largest.nbytes / largest.lower_bound


@contextmanager
def sleep_op() -> Iterator[OpDef]:
    """``op(x, seconds=)`` sleeps, then gives ``x``."""

    def kernel(xp: Any, x: Any, seconds: float) -> Any:
        time.sleep(seconds)
        return x + 0

    op = define_op(
        "SleepForBenchmark",
        "x: float32 -> float32",
        attrs={"seconds": attr_float()},
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
    for rows in (memory_rows, plan_rows, stream_rows, feed_rows):
        for row in rows():
            print(row, flush=True)
            is_met &= row.is_met
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
