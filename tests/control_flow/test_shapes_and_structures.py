"""Loop variables: their shapes (static, widened, unknown, of several feeds) and their structures."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import flowrt as tf

State = collections.namedtuple("State", ["step", "value"])
SCALAR = tf.TensorShape([])


def below(limit):
    return lambda i, *_: i < limit


# --- shapes


def test_the_static_shape_of_a_variable_is_that_of_its_first_value(run):
    x = tf.placeholder(tf.float32, [2, None])
    y = tf.while_loop(below(2), lambda i, y: (i + 1, y * 2.0), [0, x])[1]
    assert y.shape.as_list() == [2, None]
    np.testing.assert_array_equal(run(y, {x: [[1], [2]]}), [[4], [8]])


@pytest.mark.parametrize("invariant", [tf.TensorShape([None]), [None], tf.TensorShape(None)])
def test_a_variable_that_grows(run, invariant):
    _, y = tf.while_loop(
        below(4), lambda i, y: (i + 1, tf.concat([y, [i]], 0)), [0, tf.constant([9])], [SCALAR, invariant]
    )
    assert y.shape.ndims in (1, None)
    np.testing.assert_array_equal(run(y), [9, 0, 1, 2, 3])
    np.testing.assert_array_equal(run(tf.reduce_sum(y) * 2), 30)


def test_a_variable_that_shrinks_to_nothing(run):
    y = tf.while_loop(
        lambda y: tf.size(y) > 0, lambda y: y[2:], [tf.range(7)], shape_invariants=[tf.TensorShape([None])]
    )
    assert run(y).shape == (0,)


def test_a_variable_that_changes_its_rank(run):
    y = tf.while_loop(
        lambda y: tf.rank(y) < 3,
        lambda y: tf.expand_dims(y, 0),
        [tf.constant([1.0, 2.0])],
        shape_invariants=[tf.TensorShape(None)],
    )
    assert y.shape.ndims is None
    np.testing.assert_array_equal(run(y), [[[1, 2]]])


def test_one_growing_dimension_and_a_fixed_one(run):
    x = tf.placeholder(tf.float32, [None, 2])
    _, y = tf.while_loop(
        below(2), lambda i, y: (i + 1, tf.concat([y, x], 0)), [0, tf.zeros([1, 2])], [SCALAR, [None, 2]]
    )
    assert y.shape.as_list() == [None, 2]
    assert run(y, {x: np.ones([3, 2])}).shape == (7, 2)


def test_two_variables_that_exchange_their_shapes(run):
    _, a, b = tf.while_loop(
        below(3), lambda i, a, b: (i + 1, b, a), [0, tf.zeros([1]), tf.ones([2])], [SCALAR, [None], [None]]
    )
    np.testing.assert_array_equal(run(a), [1, 1])
    np.testing.assert_array_equal(run(b), [0])


def test_one_session_feeds_of_several_shapes(session):
    x = tf.placeholder(tf.float32, [None, None])
    n = tf.placeholder(tf.int32, [])
    y = tf.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y + x), [0, x * 0.0])[1]
    z = tf.reduce_sum(y, 0)
    for rows, columns, count in [(1, 1, 1), (2, 3, 4), (2, 3, 0), (5, 1, 2), (0, 3, 3), (2, 3, 1)]:
        data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        found = session.run([y, z], {x: data, n: count})
        np.testing.assert_array_equal(found[0], data * count)
        np.testing.assert_array_equal(found[1], data.sum(0) * count)


def test_a_feed_whose_shape_the_body_widens_when_run(session):
    """With the feed's shape known, one iteration does not keep it: it is unknown inside then."""
    x = tf.placeholder(tf.float32, [None])
    y = tf.while_loop(
        lambda y: tf.size(y) < 10, lambda y: tf.concat([y, x], 0), [x], shape_invariants=[[None]]
    )
    for size in (1, 3, 4, 12):
        found = session.run(y * 1.0, {x: np.ones(size)})
        assert found.size == (size if size >= 10 else -(-10 // size) * size)


def test_a_body_may_promise_a_shape(run):
    x = tf.placeholder(tf.float32)

    def body(i, y):
        y = y + x
        y.set_shape([2])
        return i + 1, y

    y = tf.while_loop(below(2), body, [0, tf.zeros([2])])[1]
    assert y.shape.as_list() == [2]
    np.testing.assert_array_equal(run(y, {x: [1, 2]}), [2, 4])


def test_an_unknown_shape_inside_a_nested_loop(run):
    def outer(i, y):
        inner = tf.while_loop(
            below(i), lambda j, z: (j + 1, tf.concat([z, [j]], 0)), [0, y], [SCALAR, tf.TensorShape([None])]
        )
        return i + 1, inner[1]

    y = tf.while_loop(below(4), outer, [0, tf.constant([7])], [SCALAR, tf.TensorShape([None])])[1]
    np.testing.assert_array_equal(run(y), [7, 0, 0, 1, 0, 1, 2])


def test_empty_variables(run):
    _, y = tf.while_loop(below(3), lambda i, y: (i + 1, y * 2.0), [0, tf.zeros([0, 4])])
    assert run(y).shape == (0, 4)


def test_shapes_that_depend_on_the_iteration(run):
    """The first value of the counter is known, and holds for the first iteration only."""
    _, y, s = tf.while_loop(
        below(3),
        lambda i, y, s: (i + 1, tf.fill([i + 1, 2], 1.0), s + tf.reduce_sum(tf.ones([i, 2]))),
        [0, tf.zeros([1, 2]), 0.0],
        [SCALAR, [None, 2], SCALAR],
    )
    found = run([y, s])
    assert found[0].shape == (3, 2)
    assert found[1] == 2 * (0 + 1 + 2)


def test_the_shape_of_a_variable_as_a_value(run):
    _, y, s = tf.while_loop(
        below(3),
        lambda i, y, s: (i + 1, tf.concat([y, y], 0), s + tf.size(y)),
        [0, tf.ones([1]), 0],
        [SCALAR, [None], SCALAR],
    )
    assert run(s) == 1 + 2 + 4
    assert run(tf.shape(y)).tolist() == [8]


# --- structures


def test_nested_structures(run):
    start = (
        tf.constant(0),
        {"a": [tf.constant(1.0), (tf.constant(2.0),)], "b": State(0, tf.constant([3.0]))},
    )

    def body(i, d):
        b = State(d["b"].step + 10, d["b"].value * 2.0)
        return i + 1, {"a": [d["a"][0] + 1.0, (d["a"][1][0] * d["a"][0],)], "b": b}

    i, d = tf.while_loop(below(3), body, start)
    assert isinstance(d["b"], State)
    assert isinstance(d["a"][1], tuple)
    found = run([i, d])
    assert found[0] == 3
    assert found[1]["a"] == [4, (2 * 1 * 2 * 3,)]
    assert found[1]["b"].step == 30
    np.testing.assert_array_equal(found[1]["b"].value, [24])


def test_one_dict(run):
    found = tf.while_loop(
        lambda d: d["i"] < 3,
        lambda d: {"i": d["i"] + 1, "x": d["x"] * 2.0},
        [{"i": 0, "x": tf.constant(1.0)}],
    )
    assert isinstance(found, dict)
    assert run(found) == {"i": 3, "x": 8}


def test_a_dict_in_the_place_of_the_list(run):
    found = tf.while_loop(
        lambda d: d["i"] < 3, lambda d: {"i": d["i"] + 1, "x": d["x"] * 2.0}, {"i": 0, "x": tf.constant(1.0)}
    )
    assert run(found) == {"i": 3, "x": 8}


def test_a_namedtuple_in_the_place_of_the_list(run):
    found = tf.while_loop(
        lambda step, value: step < 3,
        lambda step, value: State(step + 1, value * 2.0),
        State(tf.constant(0), tf.constant(1.0)),
    )
    assert isinstance(found, State)
    assert tuple(run(found)) == (3, 8)


def test_one_variable_by_itself_comes_back_by_itself(run):
    by_itself = tf.while_loop(lambda i: i < 3, lambda i: i + 1, tf.constant(0))
    in_a_list = tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [tf.constant(0)])
    in_a_tuple = tf.while_loop(lambda i: i < 3, lambda i: (i + 1,), (tf.constant(0),))
    kept = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)], return_same_structure=True)
    assert isinstance(kept, list)
    assert run([by_itself, in_a_list, in_a_tuple, kept]) == [3, 3, 3, [3]]


def test_a_list_for_a_tuple(run):
    found = tf.while_loop(lambda i, j: i < 3, lambda i, j: [i + 1, j + 2], (0, 0))
    assert run(list(found)) == [3, 6]


def test_tensor_arrays_in_a_structure(run):
    arrays = {"a": tf.TensorArray(tf.int32, 3, element_shape=[]), "b": tf.TensorArray(tf.float32, 3)}

    def body(i, t):
        return i + 1, {"a": t["a"].write(i, i * i), "b": t["b"].write(2 - i, tf.ones([2]) * tf.to_float(i))}

    found = tf.while_loop(below(3), body, [0, arrays])[1]
    assert run(found["a"].stack()).tolist() == [0, 1, 4]
    assert run(found["b"].stack()).tolist() == [[2, 2], [1, 1], [0, 0]]


def test_a_growing_tensor_array(run):
    array = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[])
    n = tf.placeholder(tf.int32, [])
    array = tf.while_loop(lambda i, _: i < n, lambda i, t: (i + 1, t.write(i, i * 3)), [0, array])[1]
    assert run([array.size(), array.stack()], {n: 4})[1].tolist() == [0, 3, 6, 9]


def test_an_array_read_and_written_in_one_body(run):
    """A running sum: each element from the one before."""
    array = tf.TensorArray(tf.float32, 5, element_shape=[], clear_after_read=False).write(0, 1.0)
    array = tf.while_loop(
        below(5), lambda i, t: (i + 1, t.write(i, t.read(i - 1) + tf.to_float(i))), [1, array]
    )[1]
    assert run(array.stack()).tolist() == [1, 2, 4, 7, 11]


def test_python_numbers_and_arrays_as_first_values(run):
    found = tf.while_loop(
        lambda i, x, y: i < 3, lambda i, x, y: (i + 1, x + 0.5, y * 2), [0, 1.0, np.array([1, 2])]
    )
    found = run(found)
    assert found[:2] == [3, 2.5]
    assert found[2].tolist() == [8, 16]
    assert found[2].dtype == np.int64


def test_a_variable_as_first_value_is_read_once(session):
    v = tf.Variable(1.0)
    y = tf.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, [v])
    session.run(v.initializer)
    assert session.run([y, v]) == [16, 1]
