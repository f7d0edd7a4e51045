"""Steps of small nets before layouts, and prices for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.graph.collectives.cost import Link
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.shapes import num_elements
from flowrt.plan.layouts.chosen_layouts import Seeds
from flowrt.plan.layouts.layout_costs import Prices
from tests.distribute.strategies.nets_with_layouts import Net

HOST = parse_device("/job:worker/task:0/device:CPU:0")
FLOPS, BANDWIDTH, CALL_S = 1e12, 2.5e10, 1e-6
FREE = ("Const", "_Feed", "VarHandleOp", "ReadVariableOp")


def step_of(build: Callable[[], Net]) -> Subgraph:
    """The training step of a net, without its loss, as it is before layouts are lowered."""
    with tf.Graph() as graph:
        net = build()
        request = StepRequest(graph, [], [net.train], {t: np.shape(v) for t, v in net.feeds.items()})
        return compile_step(request, CompileOptions([HOST]), pipeline=stages_before("lower_layouts"))


def step_under(build: Callable[[], Net], mesh: Mesh, seeds: Seeds) -> Subgraph:
    """The same in the scope of a strategy with ``seeds``; of variables, each is kept as it is used."""
    with tf.Graph() as graph:
        strategy = tf.distribute.LayoutStrategy(mesh, batch=seeds.batch)
        strategy.variable_layouts({re.escape(name): e for name, e in seeds.variables.items()})
        with strategy.scope():
            net = build()
        request = StepRequest(graph, [], [net.train], {t: np.shape(v) for t, v in net.feeds.items()})
        return compile_step(request, CompileOptions([HOST]), pipeline=stages_before("lower_layouts"))


def seconds(node: Node, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> float:
    """Seconds of ``node`` on a device of these rates."""
    if node.op.name in FREE:
        return 0.0
    if node.op.cost is not None:
        return CALL_S + (node.op.cost(inputs, outputs) or 0.0) / FLOPS
    return CALL_S + sum(num_elements(spec.shape) or 0 for spec in outputs) / BANDWIDTH


def prices(latency_s: float, seconds_per_byte: float) -> Prices:
    link = Link(latency_s, seconds_per_byte)
    return Prices(seconds, lambda axes: link)


def mesh_of(**axes: int) -> Mesh:
    """A mesh of CPUs with these axes."""
    count = int(np.prod(list(axes.values())))
    return Mesh(list(axes.items()), [f"/cpu:{i}" for i in range(count)])
