"""Steps under strategies, over workers that run them or over devices that do not exist."""

from contextlib import nullcontext
from functools import partial

import numpy as np

import flowrt as tf
from flowrt.viz.compile_request import compile_request
from tests.distribute.strategies import nets_in_stages
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net

Axis, Mesh = tf.distribute.Axis, tf.distribute.Mesh


def wide(at=None):
    """Three layers with weights that are large enough for the device's pool."""
    x = tf.placeholder(tf.float32, [64, 256], "x")
    h = x
    for layer in range(3):
        with at(layer / 3) if at else tf.name_scope(None):
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/w", [256, 256])))
    loss = tf.reduce_mean(tf.square(h))
    return {x: np.ones((64, 256), np.float32)}, loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def laid_out(net, axes, batch, layouts, **workers):
    kind = tf.distribute.MultiWorkerLayoutStrategy if workers else tf.distribute.LayoutStrategy
    found = kind(Mesh(axes), batch, **workers)
    found.variable_layouts(of_net(NETS[net], layouts))
    return found, NETS[net]


def sharded(stage, **workers):
    found = tf.distribute.FullyShardedStrategy(
        Mesh([("dp", 2)]), stage=stage, units=r"layer\d", min_bytes=0, **workers
    )
    return found, wide


def piped(net, schedule, **workers):
    found = tf.distribute.PipelineStrategy(Mesh([("pp", 2)]), "pp", 4, schedule, **workers)
    return found, net


TP = [("tp", 2)]
CASES = {
    "dp mlp": partial(laid_out, "lenet", [("dp", 2)], "dp", {}),
    "tp gpt": partial(laid_out, "gpt", TP, None, COLUMNS),
    "tp x turns gpt": partial(laid_out, "gpt", [*TP, Axis("turn", 2, is_time=True)], "turn", COLUMNS),
    "stage 0": partial(sharded, 0),
    "stage 2": partial(sharded, 2),
    "stage 3": partial(sharded, 3),
    "1f1b": partial(piped, partial(nets_in_stages.gpt, rate=0.0), "1f1b"),
    "zb_h1": partial(piped, partial(nets_in_stages.gpt, rate=0.0), "zb_h1"),
    "wide 1f1b": partial(piped, wide, "1f1b"),
}
"""A strategy, over all workers if it is given them, and a net."""


def built(case, **workers):
    """The fetches and feeds of a case, in the default graph."""
    return fetched(*CASES[case](**workers))


def fetched(strategy, build, is_in_scope=True):
    """The fetches and feeds of a net under ``strategy``, or without one, in the default graph."""
    tf.set_random_seed(7)
    if isinstance(strategy, tf.distribute.PipelineStrategy):
        feeds, loss, train = nets_in_stages.built(build, strategy)
    else:
        with strategy.scope() if strategy and is_in_scope else nullcontext():
            feeds, loss, train = build()
    return [loss, train], feeds(0) if callable(feeds) else feeds


def request_of(strategy, build, is_in_scope=True):
    """The request of a net's step on devices that do not exist."""
    with tf.Graph().as_default() as graph:
        return compile_request(graph, *fetched(strategy, build, is_in_scope)).request


def requested(case):
    """The request of a case, on devices that do not exist."""
    return request_of(*CASES[case]())
