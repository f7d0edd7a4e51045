"""The work that is timed. Each case takes the module under test (`flowrt` or TensorFlow's compat.v1) and
returns a `Measure` or several by name: a function to call again and again, or seconds that were measured
once.

TensorFlow's figures for these cases on 2 cores stand beside their bars: the largest ratio flowrt/TensorFlow
that counts as good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One benchmark: ``bars`` are the ratios to TensorFlow that are aimed at, by measure."""

    run: Callable[[Any], dict[str, float]]
    bars: dict[str, float]


def median_us(call: Callable[[], Any], seconds: float = 1.0, warm: int = 5) -> float:
    """The median time of ``call`` over at least 7 calls and about ``seconds``."""
    for _ in range(warm):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 7 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e6


def _session(tf: Any, graph: Any, cpus: int = 1, optimise: bool = True) -> Any:
    options = {}
    if not optimise and tf.__name__ != "flowrt":  # keep TensorFlow from folding the chain of devices away
        from tensorflow.core.protobuf import rewriter_config_pb2

        rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
        options["graph_options"] = tf.GraphOptions(rewrite_options=rewrites)
    return tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": cpus}, **options))


def _floats(*shape: int, scale: float = 1.0) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * scale).astype(np.float32)


def noop_run(tf: Any) -> dict[str, float]:
    """An empty ``session.run``: what a step costs before it does anything."""
    graph = tf.Graph()
    with graph.as_default():
        nothing = tf.no_op()
    session = _session(tf, graph)
    return {"run_us": median_us(lambda: session.run(nothing))}


def add_feed_fetch(tf: Any) -> dict[str, float]:
    """Feed one scalar, add one, fetch it."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    session = _session(tf, graph)
    return {"run_us": median_us(lambda: session.run(y, {x: 1.0}))}


def add_callable(tf: Any) -> dict[str, float]:
    """The same through ``make_callable``."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    add = _session(tf, graph).make_callable(y, [x])
    return {"run_us": median_us(lambda: add(1.0))}


def chain_1000_small_ops(tf: Any) -> dict[str, float]:
    """1,000 dependent operations on 64 floats."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        y = x
        for _ in range(500):
            y = tf.sin(y) * x
    session, value = _session(tf, graph), _floats(64)
    return {"run_us": median_us(lambda: session.run(y, {x: value}))}


def hops_1000_two_cpus(tf: Any) -> dict[str, float]:
    """1,000 operations on two CPU devices by turns: every tensor goes through the rendezvous."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        y = x
        for i in range(1000):
            with tf.device(f"/cpu:{i % 2}"):
                y = tf.sin(y)
    session, value = _session(tf, graph, cpus=2, optimise=False), _floats(64)
    return {"run_us": median_us(lambda: session.run(y, {x: value}))}


def graph_50k(tf: Any) -> dict[str, float]:
    """A graph of 100,000 operations on 64 floats: building, the first run, later runs."""
    start = time.perf_counter()
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [64])
        lanes = [x * float(i) for i in range(100)]
        for i in range(50_000):
            lane = i % 100
            lanes[lane] = tf.add(lanes[lane], lanes[(7 * i + 1) % 100]) * 0.5
        total = tf.add_n(lanes)
    built = time.perf_counter()
    session, value = _session(tf, graph), _floats(64)
    session.run(total, {x: value})
    ran = time.perf_counter()
    run_us = median_us(lambda: session.run(total, {x: value}))
    return {"build_s": built - start, "first_run_s": ran - built, "run_us": run_us}


def mlp_adam(tf: Any) -> dict[str, float]:
    """A training step of 784-512-512-10 with Adam, batch 128."""
    graph = tf.Graph()
    widths = [784, 512, 512, 10]
    with graph.as_default():
        x, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
        h = x
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            weights = tf.Variable(_floats(inputs, outputs, scale=0.05))
            h = tf.matmul(h, weights) + tf.Variable(np.zeros(outputs, np.float32))
            h = h if layer == 2 else tf.nn.relu(h)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h))
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    feed = {x: _floats(128, 784), labels: np.arange(128) % 10}
    return {"step_us": median_us(lambda: session.run([train, loss], feed))}


def lenet_sgd(tf: Any) -> dict[str, float]:
    """A training step of a LeNet on 64 images of 28 x 28."""
    graph = tf.Graph()
    with graph.as_default():
        x, labels = tf.placeholder(tf.float32, [64, 28, 28, 1]), tf.placeholder(tf.int64, [64])
        h = x
        for shape in ([5, 5, 1, 32], [5, 5, 32, 64]):
            h = tf.nn.relu(
                tf.nn.conv2d(h, tf.Variable(_floats(*shape, scale=0.1)), strides=[1, 1, 1, 1], padding="SAME")
            )
            h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
        h = tf.reshape(h, [64, 3136])
        h = tf.nn.relu(tf.matmul(h, tf.Variable(_floats(3136, 256, scale=0.02))))
        h = tf.matmul(h, tf.Variable(_floats(256, 10, scale=0.02)))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h))
        train = tf.train.GradientDescentOptimizer(1e-2).minimize(loss)
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    feed = {x: _floats(64, 28, 28, 1), labels: np.arange(64) % 10}
    return {"step_us": median_us(lambda: session.run([train, loss], feed))}


def gelu_sum_16m(tf: Any) -> dict[str, float]:
    """The tanh-GELU of 16 million floats, and its sum."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.identity(tf.Variable(_floats(16_000_000)))
        total = tf.reduce_sum(0.5 * x * (1.0 + tf.tanh(0.79788456 * (x + 0.044715 * x * x * x))))
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return {"run_us": median_us(lambda: session.run(total))}


def matmul_2048(tf: Any) -> dict[str, float]:
    """A product of two 2048 x 2048 matrices, and its sum."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.Variable(_floats(2048, 2048))
        total = tf.reduce_sum(tf.matmul(x, x))
        init = tf.global_variables_initializer()
    session = _session(tf, graph)
    session.run(init)
    return {"run_us": median_us(lambda: session.run(total))}


CASES: dict[str, Case] = {
    "noop_run": Case(noop_run, {"run_us": 0.15}),
    "add_feed_fetch": Case(add_feed_fetch, {"run_us": 0.06}),
    "add_callable": Case(add_callable, {"run_us": 0.04}),
    "chain_1000_small_ops": Case(chain_1000_small_ops, {}),
    "hops_1000_two_cpus": Case(hops_1000_two_cpus, {"run_us": 0.4}),
    "graph_50k": Case(graph_50k, {"build_s": 0.1, "first_run_s": 0.2, "run_us": 1.2}),
    "mlp_adam": Case(mlp_adam, {}),
    "lenet_sgd": Case(lenet_sgd, {}),
    "gelu_sum_16m": Case(gelu_sum_16m, {}),
    "matmul_2048": Case(matmul_2048, {}),
}
