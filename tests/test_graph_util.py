"""GraphDefs with functions, cut down and frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError


def frozen(build: Any) -> tuple[Any, Any]:
    """What ``build(x, v, rows)``, a function of a placeholder and two variables, becomes; and its value."""
    with tf.Graph() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [2], name="x")
        v = tf.Variable(np.float32([1, 2]), name="v")
        rows = tf.Variable(np.float32([[1, 2], [3, 4]]), name="rows")
        y = tf.identity(build(x, v, rows), name="y")
        session.run(tf.global_variables_initializer())
        message = tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["y"])
        return message, session.run(y, {x: [1, 2]})


def in_a_loop_and_a_branch(x: Any, v: Any, rows: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        return i + 1, a * v + tf.cond(tf.reduce_sum(a) > 3, lambda: tf.gather(rows, 1), lambda: v)

    return tf.while_loop(lambda i, a: tf.reduce_sum(a + v) < 50, body, [0, x])[1]


def test_variables_in_functions_become_values() -> None:
    message, value = frozen(in_a_loop_and_a_branch)
    nodes = [*message.node, *[node for function in message.library.function for node in function.node_def]]
    assert not {node.op for node in nodes} & {"VarHandleOp", "ReadVariableOp", "ResourceGather"}
    with tf.Graph() as graph, tf.Session() as session:
        tf.import_graph_def(message, name="")
        np.testing.assert_array_equal(session.run("y:0", {"x:0": [1, 2]}), value)
        assert graph.get_tensor_by_name("y:0").shape.as_list() == [2]


def test_functions_that_nobody_needs_are_left_out() -> None:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        tf.cond(x > 1, lambda: tf.cond(x > 2, lambda: x, lambda: -x), lambda: x, name="kept")
        tf.cond(x > 1, lambda: x, lambda: -x, name="other")
    message = tf.graph_util.extract_sub_graph(graph.as_graph_def(), ["kept"])
    assert len(graph.as_graph_def().library.function) == 6
    assert len(message.library.function) == 4
    with tf.Graph():
        tf.import_graph_def(message)


def test_a_variable_that_is_written_cannot_become_a_constant() -> None:
    def build(x: Any, v: Any, rows: Any) -> Any:
        return tf.cond(x[0] > 1, lambda: v.assign_add(x), lambda: x)

    with pytest.raises(
        InvalidArgumentError, match=r"AssignAddVariableOp .*expected a variable that is only read"
    ):
        frozen(build)
