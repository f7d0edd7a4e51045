"""Section ``steps``: the time of a step on the device, from an empty one to a training step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from flowrt.cli.selftest.target import Result, Target, median_s
from flowrt.dtypes import float32, int64
from flowrt.executor.program.program import RUNS_BEFORE_CAPTURE
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.ops.array.reductions import reduce_mean
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.nn.losses import sparse_softmax_cross_entropy_with_logits
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.train.optimizers.standard_optimizers import AdamOptimizer
from flowrt.variables.graph_scopes import device
from flowrt.variables.variable import Variable, global_variables_initializer

WIDTHS = (784, 2048, 2048, 10)
BATCH = 128
SMALL_REPEATS, LARGE_REPEATS = 300, 8


def check_steps(target: Target) -> Result:
    """Time an empty run, an addition of two scalars, and a training step, which must decrease the loss."""
    empty_s, add_s = time_small_steps(target)
    adam_s, launch_s, first_loss, last_loss = time_training(target, captures=True)
    layers = "-".join(map(str, WIDTHS))
    summary = f"empty {empty_s * 1e6:.1f} us; feed, add, fetch {add_s * 1e6:.1f} us; "
    summary += f"Adam on {layers}, batch {BATCH}, {adam_s * 1e3:.2f} ms"
    if target.device.is_asynchronous:
        apart_s = time_training(target, captures=False)[1]
        summary += f", launched in {launch_s * 1e6:.0f} us when captured, {apart_s * 1e6:.0f} when not"
    if target.computes and not last_loss < first_loss:
        wrong = f"expected a training that lowers the loss; got {first_loss:g}, then {last_loss:g}"
        return Result(summary, (wrong,))
    return Result(summary)


def time_small_steps(target: Target) -> tuple[float, float]:
    """Seconds of an empty run, and of one that is fed a scalar and returns its successor."""
    with Graph() as graph, device(target.name):
        nothing, x = no_op(), placeholder(float32, [])
        successor = add(x, constant(1.0))
    one = np.float32(1)
    with target.session(graph) as session:
        empty_s = median_s(lambda: session.run(nothing), SMALL_REPEATS)
        return empty_s, median_s(lambda: session.run(successor, {x: one}), SMALL_REPEATS)


def time_training(target: Target, captures: bool) -> tuple[float, float, float, float]:
    """Seconds of a step with its loss fetched, of the host with nothing fetched, the first and last loss."""
    rng = np.random.default_rng(0)
    with Graph() as graph, device(target.name):
        x, labels = placeholder(float32, [BATCH, WIDTHS[0]]), placeholder(int64, [BATCH])
        loss = network(x, labels, rng)
        train = AdamOptimizer(1e-3).minimize(loss)
        initialize = global_variables_initializer()
    feed = {x: rng.standard_normal((BATCH, WIDTHS[0]), np.float32), labels: np.arange(BATCH) % WIDTHS[-1]}
    losses: list[float] = []
    with target.session(graph, captures=captures) as session:
        session.run(initialize)
        for _ in range(RUNS_BEFORE_CAPTURE):
            session.run([train, loss], feed)
            session.run(train, feed)
        adam_s = median_s(lambda: losses.append(float(session.run([train, loss], feed)[1])), LARGE_REPEATS)
        launch_s = median_s(lambda: session.run(train, feed), LARGE_REPEATS)
    return adam_s, launch_s, losses[0], losses[-1]


def network(x: Tensor, labels: Tensor, rng: np.random.Generator) -> Any:
    """The loss of fully connected ReLU layers; initial weights are normal, scaled after He et al. (2015)."""
    h = x
    for layer, (inputs, outputs) in enumerate(pairwise(WIDTHS), start=1):
        weights = rng.standard_normal((inputs, outputs), np.float32) * np.float32(np.sqrt(2 / inputs))
        h = add(matmul(h, Variable(weights)), Variable(np.zeros(outputs, np.float32)))
        h = h if layer == len(WIDTHS) - 1 else relu(h)
    return reduce_mean(sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h))
