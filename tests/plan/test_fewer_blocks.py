"""Steps with fewer of their equal blocks, and the layers that devices share."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.node import Node, Subgraph
from flowrt.plan import shared_layers
from flowrt.plan.cluster.cluster_file import Cluster, DeviceKind, this_host
from flowrt.plan.model import Took
from flowrt.plan.step.costs import Costs, Rates, signature
from flowrt.plan.step.fewer_blocks import EqualBlocks
from flowrt.plan.step.recorded import Recorded, RecordingStrategy
from flowrt.viz.compile_request import compile_request

WIDTH = 32


def recorded(layers: int, is_clipped: bool = False, batch: int = 8) -> Recorded:
    """Residual layers of two products, with a norm in front."""
    with tf.Graph().as_default() as graph, RecordingStrategy().scope():
        x, y = tf.placeholder(tf.float32, [batch, 16]), tf.placeholder(tf.float32, [batch, 16])
        h = tf.layers.dense(x, WIDTH, name="first")
        for layer in range(layers):
            gain = tf.get_variable(f"gain{layer}", [WIDTH], initializer=tf.ones_initializer())
            normed = (h - tf.reduce_mean(h, -1, keepdims=True)) * gain
            inner = tf.layers.dense(normed, 4 * WIDTH, tf.nn.relu, name=f"up{layer}")
            h += tf.layers.dense(inner, WIDTH, name=f"down{layer}")
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 16, name="last") - y))
        optimizer = tf.train.AdamOptimizer(1e-3)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        if is_clipped:
            bounded, _ = tf.clip_by_global_norm(gradients, 1.0)
            gradients = tuple(bounded)
        train = optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        feeds = {x: np.zeros((batch, 16)), y: np.zeros((batch, 16))}
        return Recorded(compile_request(graph, [train], feeds))


def texts_of(step: Subgraph) -> Counter[int]:
    """All nodes, each with all that it reads and waits for, directly or not."""
    found: dict[str, int] = {}
    for node in step:
        controls = sorted(found[name] for name in node.controls if step.nodes[name].op.name != "NoOp")
        found[node.name] = hash((signature(step, node), *[found[n] for n, _ in node.inputs], *controls))
    return Counter(found[node.name] for node in step if node.op.name != "NoOp")


@pytest.mark.parametrize("has_parts", [False, True])
@pytest.mark.parametrize(("layers", "kept"), [(10, 5), (12, 5), (12, 9)])
def test_it_is_the_step_of_a_model_with_fewer_layers(layers: int, kept: int, has_parts: bool) -> None:
    found = EqualBlocks(recorded(layers).step(has_parts=has_parts)).fewer(kept)
    assert found.left_out > 0
    assert kept <= found.blocks <= kept + 3
    expected = recorded(layers - found.left_out).step(has_parts=has_parts)
    assert texts_of(found.step) == texts_of(expected)
    assert {found.like[f"up{layer}/kernel"] for layer in range(layers) if f"up{layer}/kernel" in found.like}


def test_few_blocks_stay_as_they_are() -> None:
    step = recorded(4).step()
    found = EqualBlocks(step).fewer(4)
    assert found.step is step
    assert found.left_out == 0


def test_blocks_that_something_else_reads_stay() -> None:
    step = recorded(12, is_clipped=True).step()  # all gradients are multiplied by one number
    assert EqualBlocks(step).fewer(4).step is step


# --- shared layers


def host(devices: int) -> Cluster:
    return this_host(devices, DeviceKind("device", {"float32": 1e9}, 1 << 30, 1e9, {"float32": 1.0}))


RATES = Rates({"float32": 1e7}, 1e9)


def took(step: Subgraph, node: Node) -> Took:
    return Took(Costs(RATES)(step, node))


@pytest.mark.parametrize("tp", [2, 4])
def test_what_few_blocks_cost_is_what_all_cost(tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, cluster = recorded(10), host(4)
    blocks = EqualBlocks(step.step(has_parts=False))
    few = shared_layers.SharedLayers(step, blocks, cluster, RATES, took).among(tp)
    monkeypatch.setattr(shared_layers, "SEARCHED", 100)
    whole = shared_layers.SharedLayers(step, blocks, cluster, RATES, took).among(tp)
    assert dict(few.layouts) == dict(whole.layouts)
    assert few[1:4] == pytest.approx(whole[1:4], rel=1e-12)
    assert few.seconds(5) == pytest.approx(whole.seconds(5), rel=1e-12)


@pytest.mark.parametrize("batch", [8, 65536])  # of many samples it takes less to share the batch
def test_layers_have_columns_and_rows_in_parts(batch: int) -> None:
    step = recorded(10, batch=batch)
    blocks = EqualBlocks(step.step(has_parts=False))
    layers = shared_layers.SharedLayers(step, blocks, host(4), RATES, took)
    found = dict(layers.among(2).layouts)
    for layer in range(10):
        assert found[f"up{layer}/kernel"] == (None, "tp")
        assert found[f"down{layer}/kernel"] == ("tp", None)
