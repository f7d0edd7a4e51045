"""Parts of a step that are equal but for names are analysed once; any other difference keeps them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.errors import InternalError
from flowrt.executor.bind.bind import Partition
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lower.part_class import are_of_class
from flowrt.executor.verify.verify_program import checking
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import op_def
from tests.each import daily
from tests.graph.passes.cases import subgraph_of
from tests.graph.passes.test_random_graphs import random_graphs

GRAPHS = 40


# --- what is one class


def renamed(subgraph: Subgraph) -> Subgraph:
    """The same with all operations renamed."""
    names = {name: f"other/{i}" for i, name in enumerate(subgraph.nodes)}
    nodes = [
        node.replace(
            name=names[node.name],
            inputs=tuple([(names[name], index) for name, index in node.inputs]),
            controls=tuple([names[name] for name in node.controls]),
        )
        for node in subgraph
    ]
    return Subgraph(
        {node.name: node for node in nodes},
        tuple([names[name] for name in subgraph.feeds]),
        tuple([(names[name], index) for name, index in subgraph.fetches]),
        tuple([names[name] for name in subgraph.targets]),
    )


def changes(node: Node, refs: list[Any]) -> Iterator[Node]:
    """``node`` with one fact changed. ``refs``: tensors that it could read."""
    if node.outputs:
        spec = node.outputs[0]
        longer = TensorSpec(spec.dtype, (*(spec.shape or ()), 7))
        yield node.replace(outputs=(longer, *node.outputs[1:]))
    if node.op.name == "AddV2":
        yield node.replace(op=op_def("Mul"))
    if node.op.name == "Sum":
        yield node.replace(attrs={**node.attrs, "keep_dims": not node.attrs["keep_dims"]})
    for i, ref in enumerate(node.inputs):
        other = next((r for r in refs if r != ref), None)
        if other is not None:
            yield node.replace(inputs=(*node.inputs[:i], other, *node.inputs[i + 1 :]))
    if node.controls:
        yield node.replace(controls=node.controls[1:])


def test_names_alone_keep_no_graphs_apart_and_any_other_change_does() -> None:
    tried = 0
    for seed, made in enumerate(random_graphs(range(GRAPHS))):
        step = made.subgraph
        other = renamed(step)
        assert are_of_class(step, other), seed
        refs: list[Any] = []
        for node in other:
            for changed in changes(node, refs):
                nodes = {**other.nodes, node.name: changed}
                assert not are_of_class(step, other.replace(nodes=nodes)), (seed, node, changed)
                tried += 1
            refs += [(node.name, index) for index in range(len(node.outputs))]
        if len(set(other.fetches)) > 1:
            assert not are_of_class(step, other.replace(fetches=other.fetches[::-1]))
    assert tried > 20 * GRAPHS


def of_constant(value: list[int], build: Callable[[Any, Any], Any]) -> Subgraph:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [4, 4], name="x")
        return subgraph_of([build(x, tf.constant(value, name="c"))], feeds=[x])


@pytest.mark.parametrize(
    ("build", "is_one"),
    [
        (lambda x, c: x * tf.cast(c, tf.float32)[0], True),
        (lambda x, c: tf.slice(x, c, [2, 2]), True),  # a view of as many bytes, elsewhere
        (lambda x, c: tf.slice(x, [0, 0], c), False),
        (tf.reduce_sum, False),
        (lambda x, c: tf.reduce_sum(x, tf.identity(c)), False),  # passed on
        (lambda x, c: tf.cond(x[0, 0] > 0, lambda: tf.reduce_sum(x, c), lambda: x), False),
    ],
)  # fmt: skip
def test_a_constant_that_decides_how_it_is_read_keeps_parts_apart(build: Any, is_one: bool) -> None:
    first, other = of_constant([1, 0], build), of_constant([0, 1], build)
    assert are_of_class(first, other) is is_one
    assert are_of_class(first, of_constant([1, 0], build)) or not is_one


# --- in plans


def build_layouts(count: int, tp: int = 1) -> tuple[Any, Any]:
    """Loss and update of a net, data parallel over ``count`` devices, or also tensor parallel."""
    axes = [("dp", count // tp), ("tp", tp)] if tp > 1 else [("dp", count)]
    strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh(axes), batch="dp")
    if tp > 1:
        strategy.variable_layouts({"w[02]": [None, "tp"], "w[13]": ["tp", None]})
    return in_scope(strategy, 2 * count // tp)


def build_sharded(count: int) -> tuple[Any, Any]:
    mesh = tf.distribute.Mesh([("dp", count)])
    return in_scope(tf.distribute.FullyShardedStrategy(mesh, axis="dp", stage=3, min_bytes=0), 2 * count)


def in_scope(strategy: Any, rows: int) -> tuple[Any, Any]:
    with strategy.scope():
        h = tf.placeholder(tf.float32, [rows, 16], name="x")
        for i in range(4):
            start = np.random.default_rng(i).standard_normal((16, 16)).astype(np.float32) * 0.2
            w, b = tf.Variable(start, name=f"w{i}"), tf.Variable(np.zeros(16, np.float32), name=f"b{i}")
            h = tf.tanh(h @ w + b)
        loss = tf.reduce_mean(h * h)
        return loss, tf.train.AdamOptimizer(0.1).minimize(loss)


def losses(build: Callable[[], tuple[Any, Any]], count: int) -> tuple[list[Any], int]:
    """Losses of five steps, and the number of parts that were analysed."""
    with tf.Graph().as_default() as graph:
        loss, update = build()
        (x,) = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
        feed = {x: np.random.default_rng(9).standard_normal(x.shape.as_list()).astype(np.float32)}
        config = tf.ConfigProto(device_count={"CPU": count})
        with tf.Session(graph=graph, config=config) as session:
            session.run(tf.global_variables_initializer())
            found = [session.run([loss, update], feed)[0].tobytes() for _ in range(5)]
            plan = [plan for of_plan in session._runtime._plans if (plan := of_plan())][-1]
    return found, len({id(part.costs) for part in plan.partitions.values()})


CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], int, int]] = {
    "data parallel": (lambda: build_layouts(8), 8, 2),  # the first has the feed and the loss
    "data parallel on more": (lambda: build_layouts(12), 12, 2),
    "fully sharded": (lambda: build_sharded(8), 8, 8),
    "tensor parallel": (lambda: build_layouts(8, 2), 8, 4),
}


@pytest.mark.parametrize(
    ("case", "jit"),
    daily(product(CASES, ["off", "eager"]), lambda case, jit: jit == "off" or case == "fully sharded"),
)
def test_a_class_is_analysed_once_with_the_bits_of_many_analyses(
    case: str, jit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", jit)
    build, count, classes = CASES[case]
    with checking():
        shared, analysed = losses(build, count)
    assert analysed <= classes
    monkeypatch.setattr(Partition, "of_class", lambda self, subgraph, device: None)
    alone, analysed = losses(build, count)
    assert analysed == count
    assert shared == alone


@pytest.mark.parametrize("lowering", ["auto", "native"])
def test_ranks_of_a_collective_are_of_one_class(lowering: str) -> None:
    with tf.Graph().as_default():
        values = []
        for i in range(4):
            with tf.device(f"/cpu:{i}"):
                values.append(tf.sin(tf.constant([1.0 + i, 2.0])))
        totals = collectives.all_reduce(values, lowering=lowering)
        with checking(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            for _ in range(2):
                found = session.run(totals)
                np.testing.assert_allclose(found, [np.sin([[1, 2], [2, 2], [3, 2], [4, 2]]).sum(0)] * 4, 1e-5)
            (plan,) = [plan for of_plan in session._runtime._plans if (plan := of_plan())]
            assert len({id(part.costs) for part in plan.partitions.values()}) == 1


def test_buffers_of_another_part_at_one_place_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    own = BoundTensors._new_buffer

    def wrong(self: BoundTensors, node: Node, index: int) -> Any:
        if self.device.name.endswith(":3"):
            self._memory = self._memory._replace(offsets=dict.fromkeys(self._memory.offsets, 0))
        return own(self, node, index)

    monkeypatch.setattr(BoundTensors, "_new_buffer", wrong)
    with checking(), pytest.raises(InternalError, match="program"):
        losses(lambda: build_layouts(4), 4)


def test_nodes_in_the_place_of_others_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = Partition.order

    def swapped(self: Partition) -> list[Node]:
        nodes = own.fget(self)
        alike = [i for i, node in enumerate(nodes) if node.op.name == "Tanh"]
        changed = dict(zip(alike, alike[::-1], strict=True)) if self.device.name.endswith(":3") else {}
        return [nodes[changed.get(i, i)] for i in range(len(nodes))]

    monkeypatch.setattr(Partition, "order", property(swapped))
    with checking(), pytest.raises(InternalError, match="program"):
        losses(lambda: build_layouts(4), 4)
