"""A recorded step under a choice is the step of a script that was written for its strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.dtypes import bfloat16
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.lower_layouts import lower_layouts
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before
from flowrt.graph.precision import Precision
from flowrt.plan.choice import Choice
from flowrt.plan.in_place import carry_out
from flowrt.plan.step.applied import applied, devices_of
from flowrt.plan.step.recorded import Recorded, RecordingStrategy
from flowrt.viz.compile_request import compile_request
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, Net, of_net
from tests.each import daily

CHOICES = [
    Choice(),
    Choice(dp=2),
    Choice(dp=3, sharding=1),
    Choice(dp=2, sharding=2, micro_batches=2),
    Choice(dp=4, sharding=3),
    Choice(dp=2, tp=2),
    Choice(tp=2),
    Choice(dp=2, tp=2, sharding=3),
    Choice(pp=2, micro_batches=4),
    Choice(pp=2, dp=2, tp=2, micro_batches=2, schedule="gpipe", remat=True),
    Choice(pp=2, chunks=2, micro_batches=4, schedule="interleaved"),
]


def wide() -> Any:
    """With variables that are worth sharding, and some that are not."""
    x, y = tf.placeholder(tf.float32, [12, 64]), tf.placeholder(tf.int32, [12])
    h = x
    for layer in range(4):
        h = tf.layers.dense(h, 300, tf.nn.relu, name=f"layer{layer}")
    logits = tf.layers.dense(h, 10, name="logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = tf.train.AdamOptimizer(0.1).minimize(loss)
    return Net({x: np.zeros((12, 64)), y: np.zeros(12)}, loss, train)


def clipped() -> Any:
    """With gradients that are divided by the norm of all, which one stage has."""
    x, y = tf.placeholder(tf.float32, [12, 16]), tf.placeholder(tf.float32, [12, 16])
    h = x
    for layer in range(6):
        h = tf.layers.dense(h, 16, tf.nn.relu, name=f"layer{layer}")
    loss = tf.reduce_mean(tf.square(h - y))
    optimizer = tf.train.AdamOptimizer(0.1)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    bounded, _ = tf.clip_by_global_norm(gradients, 1.0)
    train = optimizer.apply_gradients(list(zip(bounded, variables, strict=True)))
    return Net({x: np.zeros((12, 16)), y: np.zeros((12, 16))}, loss, train)


ALL = {"mlp": NETS["mlp"], "gpt": NETS["gpt"], "wide": wide, "clipped": clipped}


def with_layouts(choice: Choice, net: str) -> Choice:
    if choice.tp == 1:
        return choice
    found = of_net(ALL[net], COLUMNS)
    return replace(choice, layouts=tuple((name, tuple(e)) for name, e in found.items()))


def request_of(net: Any) -> Any:
    return compile_request(tf.get_default_graph(), [net.loss, net.train], net.feeds)


def recorded(build: Callable[[], Any], policy: Precision | None = None) -> Recorded:
    with tf.Graph().as_default(), RecordingStrategy(policy).scope():
        return Recorded(request_of(build()), policy)


def written(build: Callable[[], Any], choice: Choice, policy: Precision | None = None) -> Subgraph:
    """The step of a script with the strategy of ``choice``."""
    names = [device.to_string() for device in devices_of(choice.devices)]
    with tf.Graph().as_default():
        with choice.strategy(names, policy).scope():
            net = build()
        request = request_of(net)
        return compile_step(request.request, CompileOptions(()), pipeline=stages_before("lower_layouts"))


def carried_out(build: Callable[[], Any], choice: Choice) -> Subgraph:
    """The step of a script of which the graph gets the attributes of ``choice`` afterwards."""
    with tf.Graph().as_default() as graph:
        with RecordingStrategy().scope():
            net = build()
        request = request_of(net)
        names = [device.to_string() for device in devices_of(choice.devices)]
        carry_out(graph, Recorded(request), choice.strategy(names), choice)
        return compile_step(request.request, CompileOptions(()), pipeline=stages_before("lower_layouts"))


def text_of(step: Subgraph, count: int) -> Counter[Any]:
    lowered = lower_layouts(step, devices_of(count))
    computing = [
        node for node in lowered if node.op.name != "NoOp"
    ]  # one waits for all gradients of a script
    return Counter((node.op.name, node.device, node.outputs, len(node.inputs)) for node in computing)


def is_for_every_run(net: str, choice: Choice) -> bool:
    """Each choice with the wide net, tensor parallelism and stages with another one each."""
    return net == "wide" or (net, choice.pp, choice.tp) in {("mlp", 1, 2), ("gpt", 2, 2), ("clipped", 2, 1)}


@pytest.mark.parametrize(("net", "choice"), daily(product(ALL, CHOICES), is_for_every_run), ids=str)
def test_it_is_the_step_of_a_script_written_for_the_strategy(net: str, choice: Choice) -> None:
    choice = with_layouts(choice, net)
    found = applied(recorded(ALL[net]), choice)
    expected = written(ALL[net], choice)
    assert text_of(found, choice.devices) == text_of(expected, choice.devices)


@pytest.mark.parametrize(
    "choice", daily(zip(CHOICES), lambda choice: choice.sharding == 3 or choice.pp > 1), ids=str
)
def test_it_is_that_step_in_16_bits(choice: Choice) -> None:
    policy = Precision("bfloat16")
    choice = with_layouts(choice, "wide")
    found = text_of(applied(recorded(wide, policy), choice), choice.devices)
    assert found == text_of(written(wide, choice, policy), choice.devices)
    assert any(output.dtype is bfloat16 for _, _, outputs, _ in found for output in outputs)
