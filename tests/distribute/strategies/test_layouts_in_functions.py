"""Loops and branches of which each coordinate computes its part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline
from flowrt.graph.passes.prepare.prune import StepRequest

X = np.random.default_rng(0).standard_normal((12, 4))

MESHES: list[tuple[Mesh, Any]] = [
    (Mesh([("dp", 2)]), "dp"),
    (Mesh([("dp", 5)]), "dp"),
    (Mesh([("dp", 2), ("tp", 2)]), "dp"),
    (Mesh([Axis("turn", 3, is_time=True)]), "turn"),
    (Mesh([("dp", 2), Axis("turn", 2, is_time=True)]), ("dp", "turn")),
]


def weights() -> Any:
    return tf.get_variable("w", initializer=np.random.default_rng(3).standard_normal((4, 4)))


def with_gradients(y: Any, *xs: Any) -> list[Any]:
    return [y, *tf.gradients(tf.reduce_mean(tf.square(y)), [*tf.trainable_variables(), *xs])]


def lstm(x: Any) -> Any:
    steps = tf.stack([x, 2.0 * x, tf.sin(x)], 1)
    return with_gradients(tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(4), steps, dtype=tf.float64)[0])


def different_lengths(x: Any) -> Any:
    steps, lengths = tf.stack([x, 2.0 * x, tf.sin(x)], 1), tf.cast(2.0 * tf.abs(x[:, 0]), tf.int32)
    cell = tf.nn.rnn_cell.GRUCell(3)
    return with_gradients(tf.nn.dynamic_rnn(cell, steps, sequence_length=lengths, dtype=tf.float64)[0])


def nested_loops(x: Any) -> Any:
    w = weights()

    def outer(i: Any, a: Any) -> Any:
        inner = tf.while_loop(lambda j, _: j < i, lambda j, b: [j + 1, tf.tanh(b @ w)], [0, a])
        return i + 1, a + inner[1]

    return with_gradients(tf.while_loop(lambda i, _: i < 3, outer, [0, x])[1])


def until_a_sum_of_the_batch(x: Any) -> Any:
    def goes_on(_: Any, a: Any) -> Any:
        return tf.reduce_sum(tf.square(a)) > 1.0

    return with_gradients(tf.while_loop(goes_on, lambda i, a: [i + 1, 0.7 * a], [0, x])[1], x)


def writes_in_a_loop(x: Any) -> Any:
    w = weights()

    def body(i: Any, a: Any) -> Any:
        with tf.control_dependencies([w.assign_add(0.1 * tf.matmul(x, x, transpose_a=True))]):
            return i + 1, tf.tanh(a @ w.read_value())

    _, y = tf.while_loop(lambda i, _: i < 3, body, [0, x])
    with tf.control_dependencies([y]):
        return [y, w.read_value()]


def writes_in_a_branch(x: Any) -> Any:
    w = weights()
    change = tf.cond(tf.reduce_sum(x) > 100.0, lambda: w.assign_add(w), lambda: w.assign_sub(0.5 * w))
    with tf.control_dependencies([change]):
        return [x @ w.read_value()]


def lists_in_branches(x: Any) -> Any:
    def body(i: Any, rows: Any) -> Any:
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: rows.write(i, x), lambda: rows.write(i, x * x))

    rows = tf.TensorArray(tf.float64, 3, element_shape=[None, 4])
    return [tf.while_loop(lambda i, _: i < 3, body, [0, rows])[1].stack()]


def rows_one_by_one(x: Any) -> Any:
    w = weights()
    return with_gradients(tf.map_fn(lambda row: tf.reduce_sum(w * row, 1), x))


def branches_on_a_mean(x: Any) -> Any:
    w = weights()
    return with_gradients(tf.cond(tf.reduce_mean(x) > -9.0, lambda: x @ w, lambda: 2.0 * x), x)


def one_branch_keeps_a_tensor(x: Any) -> Any:
    """The other has a scalar in its place."""
    w = weights()
    return with_gradients(tf.cond(tf.reduce_mean(x) > -9.0, lambda: tf.tanh(tf.tanh(x @ w)), lambda: x), x)


def branches_of_other_sizes(x: Any) -> list[Any]:
    return with_gradients(tf.cond(tf.reduce_mean(x) > -9.0, lambda: x[:5], lambda: x) @ weights())


def rows_are_added(x: Any) -> Any:
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 4])]
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: [i + 1, tf.concat([a, a[:1]], 0)], [0, x], shapes)


def strings(x: Any) -> Any:
    def body(i: Any, s: Any, a: Any) -> Any:
        return i + 1, tf.string_join([s, tf.as_string(i)]), 2.0 * a

    return tf.while_loop(lambda i, *_: i < 3, body, [0, tf.constant("s"), x])


def masks(x: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        return i + 1, tf.nn.dropout(a, 0.7, seed=5)

    return with_gradients(tf.while_loop(lambda i, _: i < 3, body, [0, x])[1], x)


PROGRAMS: list[Callable[[Any], Any]] = [
    lstm, different_lengths, nested_loops, until_a_sum_of_the_batch, writes_in_a_loop, writes_in_a_branch,
    lists_in_branches, rows_one_by_one, branches_on_a_mean, one_branch_keeps_a_tensor,
    branches_of_other_sizes, rows_are_added, strings, masks,
]  # fmt: skip


def built(program: Callable[[Any], Any], mesh: Mesh | None = None, batch: Any = None) -> tuple[Any, Any]:
    """The fetches and the input of a program."""
    tf.set_random_seed(2)
    if mesh is None:
        x = tf.placeholder(tf.float64, [None, 4])
        return program(x), x
    with tf.distribute.LayoutStrategy(mesh, batch=batch).scope() as strategy:
        if any(axis.name == "tp" for axis in mesh.axes):
            strategy.variable_layouts({r"w|.*kernel": [None, "tp"]})
        x = tf.placeholder(tf.float64, [None, 4])
        return program(x), x


def results(program: Callable[[Any], Any], mesh: Mesh | None = None, batch: Any = None) -> list[Any]:
    """The results of two steps."""
    with tf.Graph().as_default():
        fetches, x = built(program, mesh, batch)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 5})) as session:
            session.run(tf.global_variables_initializer())
            return [session.run(fetches, {x: X}) for _ in range(2)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_give_the_results_of_one_device(program: Callable[[Any], Any]) -> None:
    expected = results(program)
    for mesh, batch in MESHES:
        for step, found in zip(expected, results(program, mesh, batch), strict=True):
            for one, many in zip(step, found, strict=True):
                if isinstance(one, (bytes, str)):
                    assert many == one
                else:
                    np.testing.assert_allclose(many, one, 1e-10, 1e-12, err_msg=str(mesh))


def everything(step: Subgraph) -> Iterator[tuple[Node, bool]]:
    """The nodes of a step, and whether they are inside a function."""
    for node in step:
        yield node, False
        for function in owned_subgraphs(node.attrs):
            yield from ((inner, True) for inner, _ in everything(function))


def test_each_device_has_a_loop_of_its_own_and_gradients_travel_once() -> None:
    """Weight gradients are added up in the backward loop as they are, and reduced after it."""
    with tf.Graph() as graph:
        gradients, x = built(lstm, Mesh([("dp", 2)]), "dp")
        updates = [w.assign_sub(g).op for w, g in zip(tf.trainable_variables(), gradients[1:], strict=True)]
        devices = [parse_device(f"/job:localhost/task:0/device:CPU:{i}") for i in range(2)]
        stages = "extract, lower, order_effects, infer_shapes, optimise, infer_shapes, lower_layouts"
        request = StepRequest(graph, [], updates, {x: X.shape})
        step = compile_step(request, CompileOptions(devices), pipeline=parse_pipeline(stages))
    nodes = list(everything(step))
    loops = [node.name for node, _ in nodes if node.op.name == "_Loop"]
    assert sorted(name.rpartition("@")[2] for name in loops) == ["dp0", "dp0", "dp1", "dp1"]
    collectives = [(node.op.name, inside) for node, inside in nodes if node.op.name.startswith("All")]
    assert collectives == [("AllReduce", False)] * 2  # of the kernel's gradient and of the bias's
