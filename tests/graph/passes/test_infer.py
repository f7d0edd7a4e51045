"""Shapes inside loops, by the shapes of the feeds: those of lists' elements above all."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.node import owned_subgraphs
from flowrt.graph.passes.pipeline import optimise
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import extract

SCALAR, VECTOR = tf.TensorShape([]), tf.TensorShape([None])


def inferred(fetches, feeds):
    """The subgraph of a run with feeds of these shapes, as far as `infer_shapes`."""
    subgraph = extract(get_default_graph(), fetches, [], feeds)
    return infer_shapes(order_effects(lower(subgraph)))


def everywhere(subgraph):
    """The nodes of the subgraph and of all functions in it."""
    for node in subgraph:
        yield node
        for function in owned_subgraphs(node.attrs):
            yield from everywhere(function)


def of_kind(subgraph, name):
    return [node for node in everywhere(subgraph) if node.op.name == name]


def shapes_of(subgraph, name, output=0):
    """The shapes of the output of all nodes of that kind."""
    return {node.outputs[output].shape for node in of_kind(subgraph, name)}


def recurrent_loss(x, lengths):
    tf.set_random_seed(1)
    cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.BasicLSTMCell(4) for _ in range(2)])
    out, state = tf.nn.dynamic_rnn(cell, x, sequence_length=lengths, dtype=tf.float32)
    return tf.reduce_sum(out * out) + tf.reduce_sum(state[-1].h)


@pytest.mark.parametrize("is_sized", [False, True])
def test_a_gradient_of_a_recurrent_network_asks_for_no_shape_once_the_batch_is_known(is_sized):
    x, lengths = tf.placeholder(tf.float32, [None, 5, 3]), tf.placeholder(tf.int32, [None])
    loss = recurrent_loss(x, lengths if is_sized else None)
    gradients = tf.gradients(loss, [x, *tf.trainable_variables()])
    before = inferred(gradients, {x: (2, 5, 3), lengths: (2,)})
    assert of_kind(before, "BroadcastGradientArgs")
    after = optimise(before)
    loops = [node for node in after if node.op.name == "_Loop"]
    assert len(loops) >= 2
    inside = {n.op.name for loop in loops for n in everywhere(loop.attrs["body"])}
    assert not inside & {"BroadcastGradientArgs", "Shape"}


def test_one_session_takes_batches_of_several_sizes():
    x, lengths = tf.placeholder(tf.float32, [None, 5, 3]), tf.placeholder(tf.int32, [None])
    gradients = tf.gradients(recurrent_loss(x, lengths), [x, *tf.trainable_variables()])
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 5, 3)).astype(np.float32)
    steps = np.array([5, 2, 3, 1, 4])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = {}
        for count in (3, 5, 3):
            of_inputs, *of_weights = session.run(gradients, {x: values[:count], lengths: steps[:count]})
            assert of_inputs.shape == (count, 5, 3)
            for before, after in zip(found.get(count, []), [of_inputs, *of_weights], strict=False):
                np.testing.assert_array_equal(before, after)
            found[count] = [of_inputs, *of_weights]
    np.testing.assert_allclose(found[3][0], found[5][0][:3], rtol=1e-5, atol=1e-6)


def test_a_list_of_elements_that_grow_has_none_of_their_shapes():
    x = tf.placeholder(tf.float32, [None])

    def grow(i, y):
        return i + 1, tf.concat([y * y, y[:1]], 0)

    _, y = tf.while_loop(lambda i, y: i < 3, grow, [0, x], shape_invariants=[SCALAR, VECTOR])
    (dx,) = tf.gradients(y, x)
    subgraph = inferred([dx], {x: (2,)})
    popped = {n.outputs[1] for n in of_kind(subgraph, "TensorListPopBack")}
    assert {spec.shape for spec in popped if spec.dtype is tf.float32} == {(None,)}
    with tf.Session() as session:
        a, b = 1.5, -2.0  # become a**8, b**8 and three times a**4
        expected = [8 * a**7 + 12 * a**3, 8 * b**7]
        np.testing.assert_allclose(session.run(dx, {x: [a, b]}), expected, rtol=1e-5)


def lines(rows, written):
    """A TensorArray of four, of which a loop writes three as ``written`` says."""
    array = tf.TensorArray(tf.float32, 4, infer_shape=False)
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, written(a, i, rows)), [0, array])[1]


@pytest.mark.parametrize(
    "written",
    [
        lambda a, i, x: a.write(i, x * 2),
        lambda a, i, x: tf.cond(i > 1, lambda: a.write(i, x), lambda: a.write(i, -x)),
        lambda a, i, x: tf.while_loop(lambda j, b: j < i + 1, lambda j, b: (j + 1, b.write(j, x)), [i, a])[1],
    ],
)
def test_the_elements_are_what_a_loop_writes(written):
    x = tf.placeholder(tf.float32, [None])
    y = lines(x, written).read(1)
    assert shapes_of(inferred([y], {x: (2,)}), "TensorListGetItem") == {(2,)}
    with tf.Session() as session:
        assert np.abs(session.run(y, {x: [1, 2]})).tolist() in ([1, 2], [2, 4])


def test_an_element_that_is_written_later_may_be_of_another_shape():
    x, z = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32)
    array = lines(x, lambda a, i, x: a.write(i, x))
    y = array.write(3, z).read(3)
    for shape in [(5,), None]:
        assert shapes_of(inferred([y], {x: (2,), z: shape}), "TensorListGetItem") == {
            None if shape is None else (None,)
        }
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(y, {x: [1, 2], z: [1, 2, 3, 4, 5]}), [1, 2, 3, 4, 5])


def test_iterations_that_write_different_shapes_leave_them_unknown():
    x = tf.placeholder(tf.float32, [None])
    y = lines(x, lambda a, i, x: a.write(i, x[:i])).read(2)
    assert shapes_of(inferred([y], {x: (2,)}), "TensorListGetItem") == {(None,)}
    with tf.Session() as session:
        assert session.run(y, {x: [1, 2]}).tolist() == [1, 2]
