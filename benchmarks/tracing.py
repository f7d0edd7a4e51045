"""What it costs to keep the last steps (``FLOWRT_TRACE``): ``python -m benchmarks.tracing``.

Two sessions train the MLP of `mlp_adam`, one with the ring and one without, in turn: what the machine does
besides happens to both. The bar is 3 %.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import flowrt as tf
from benchmarks import inputs
from flowrt.executor.observe.recent_steps import keep_recent_steps

PAIRS = 600
WARM_RUNS = 50
MAX_OVERHEAD = 0.03
KEPT = 100


def new_step() -> Callable[[], object]:
    """A training step of 784-512-512-10 with Adam, batch 128, in a session of its own."""
    graph = tf.Graph()
    with graph.as_default():
        x, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
        w1, b1, w2, b2, w3, b3 = map(tf.Variable, inputs.mlp_parameters())
        h = tf.nn.relu(tf.matmul(x, w1) + b1)
        h = tf.nn.relu(tf.matmul(h, w2) + b2)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.matmul(h, w3) + b3)
        loss = tf.reduce_mean(losses)
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
        session = tf.Session(graph=graph)
        session.run(tf.global_variables_initializer())
    feed = {x: inputs.floats(128, 784), labels: inputs.digits(128)}
    return lambda: session.run([loss, train], feed)


def warm(step: Callable[[], object]) -> None:
    """Until its loops are compiled, which happens beside the runs."""
    for _ in range(WARM_RUNS):
        step()
        time.sleep(0.01)


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def overhead() -> float:
    """The part of a step's time that the ring adds."""
    plain = new_step()
    warm(plain)
    keep_recent_steps(KEPT)
    kept = new_step()
    warm(kept)
    times = [(seconds(plain), seconds(kept)) for _ in range(PAIRS)]
    without, with_ring = zip(*times, strict=True)
    return median(with_ring) / median(without) - 1


def main() -> int:
    found = overhead()
    print(f"keeping the last {KEPT} steps takes {found:.1%} of a step; the bar is {MAX_OVERHEAD:.0%}")
    return int(found > MAX_OVERHEAD)


if __name__ == "__main__":
    sys.exit(main())
