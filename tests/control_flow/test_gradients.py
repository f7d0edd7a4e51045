"""Gradients through branches and loops, against finite differences and against the unrolled graph."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from tests.control_flow.counting import counted


def below(limit):
    return lambda i, *_: i < limit


def difference(function, x, step=1e-6):
    """The derivatives of the scalar ``function`` at the array ``x``, by central differences."""
    x = np.asarray(x, np.float64)
    found = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[index] = step
        found[index] = (function(x + move) - function(x - move)) / (2 * step)
    return found


# --- branches


@pytest.mark.parametrize("value,expected", [(True, 6.0), (False, 12.0)])
def test_of_the_branch_taken(run, value, expected):
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: x * x, lambda: x * x * x - 15.0 * x)
    assert run(tf.gradients(y, x)[0], {x: 3.0, pred: value}) == expected


def test_of_a_branch_that_does_not_read_it(run):
    x, pred = tf.placeholder(tf.float64, [2]), tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: tf.reduce_sum(x * x), lambda: tf.constant(1.0, tf.float64))
    dx = tf.gradients(y, x)[0]
    np.testing.assert_array_equal(run(dx, {x: [1, 2], pred: True}), [2, 4])
    np.testing.assert_array_equal(run(dx, {x: [1, 2], pred: False}), [0, 0])


def test_of_several_results(run):
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    a, b = tf.cond(pred, lambda: (x * 2.0, x * 3.0), lambda: (x * x, tf.exp(x)))
    da, db, both = (tf.gradients(y, x)[0] for y in (a, b, [a, b]))
    assert run([da, db, both], {x: 3.0, pred: True}) == [2, 3, 5]
    np.testing.assert_allclose(run([da, db], {x: 3.0, pred: False}), [6, np.exp(3.0)])


def test_the_gradient_computes_only_its_branch(session):
    calls = []
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])

    def branch(label):
        @tf.custom_gradient
        def double(x):
            return x * 2.0, lambda dy: counted(dy, calls, label) * 2.0

        return lambda: double(x)

    dx = tf.gradients(tf.cond(pred, branch("true"), branch("false")), x)[0]
    assert session.run(dx, {x: 1.0, pred: False}) == 2
    assert calls == ["false"]


def test_with_respect_to_a_variable_that_both_branches_read(run):
    v, pred = tf.Variable([1.0, 2.0], dtype=tf.float64), tf.placeholder(tf.bool, [])
    y = tf.reduce_sum(tf.cond(pred, lambda: v * v, lambda: v * 5.0))
    dv = tf.gradients(y, v)[0]
    np.testing.assert_array_equal(run(dv, {pred: True}), [2, 4])
    np.testing.assert_array_equal(run(dv, {pred: False}), [5, 5])


def test_second_and_third_derivative(run):
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: x**4, lambda: tf.sin(x))
    first = tf.gradients(y, x)[0]
    second = tf.gradients(first, x)[0]
    third = tf.gradients(second, x)[0]
    assert run([first, second, third], {x: 2.0, pred: True}) == [32, 48, 48]
    np.testing.assert_allclose(
        run([first, second, third], {x: 2.0, pred: False}), [np.cos(2), -np.sin(2), -np.cos(2)]
    )


def test_of_nested_branches(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.cond(
        x > 0.0,
        lambda: tf.cond(x > 1.0, lambda: x * x * x, lambda: x * x),
        lambda: tf.cond(x > -1.0, lambda: -x, lambda: x),
    )
    dx = tf.gradients(y, x)[0]
    assert [run(dx, {x: v}) for v in (2.0, 0.5, -0.5, -2.0)] == [12, 1, -1, 1]


def test_of_a_gather_in_a_branch(run):
    v, pred = tf.Variable(np.ones([4, 2])), tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: tf.reduce_sum(tf.gather(v, [1, 1, 3])), lambda: tf.reduce_sum(v) * 2.0)
    dv = tf.convert_to_tensor(tf.gradients(y, v)[0])
    np.testing.assert_array_equal(run(dv, {pred: True})[:, 0], [0, 2, 0, 1])
    np.testing.assert_array_equal(run(dv, {pred: False}), np.full([4, 2], 2))


def test_of_a_case(run):
    x, index = tf.placeholder(tf.float64, []), tf.placeholder(tf.int32, [])
    y = tf.switch_case(index, [lambda: x * x, lambda: tf.exp(x), lambda: tf.constant(0.0, tf.float64)])
    dx = tf.gradients(y, x)[0]
    np.testing.assert_allclose([run(dx, {x: 2.0, index: i}) for i in range(3)], [4, np.exp(2), 0])


# --- loops


@pytest.mark.parametrize("count", [0, 1, 5])
def test_of_a_power(run, count):
    x, n = tf.placeholder(tf.float64, []), tf.placeholder(tf.int32, [])
    y = tf.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y * x), [0, x])[1]
    first = tf.gradients(y, x)[0]
    second = tf.gradients(first, x)[0]
    k = count + 1
    assert run([y, first], {x: 2.0, n: count}) == [2.0**k, k * 2.0 ** (k - 1)]
    assert run(second, {x: 2.0, n: count}) == k * (k - 1) * 2.0 ** (k - 2)


def test_against_the_unrolled_graph(run):
    """Bit for bit: one order of additions."""
    w = tf.Variable(np.random.default_rng(0).normal(size=(4, 4)))
    x = tf.placeholder(tf.float64, [3, 4])
    looped = tf.while_loop(below(5), lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))), [0, x])[1]
    unrolled = tf.convert_to_tensor(x)
    for _ in range(5):
        unrolled = tf.tanh(tf.matmul(unrolled, w))
    data = np.random.default_rng(1).normal(size=(3, 4))
    found = [run([y, *tf.gradients(tf.reduce_sum(y * y), [x, w])], {x: data}) for y in (looped, unrolled)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


def test_of_captures_of_every_kind(run):
    x, v = tf.placeholder(tf.float64, [2]), tf.Variable([1.5, -0.5], dtype=tf.float64)
    c = tf.constant([0.3, 0.7], tf.float64)
    outside = tf.sin(x) * v

    def body(i, y):
        return i + 1, tf.tanh(y * c + outside * tf.cast(i, tf.float64)) + v * y

    y = tf.reduce_sum(tf.while_loop(below(3), body, [0, x])[1])

    def reference(x, v, c):
        y = x
        for i in range(3):
            y = np.tanh(y * c + np.sin(x) * v * i) + v * y
        return y.sum()

    at = [np.array([0.2, -0.4]), np.array([1.5, -0.5]), np.array([0.3, 0.7])]
    found = run(tf.gradients(y, [x, v, c]), {x: at[0]})
    for k in range(3):
        expected = difference(lambda p, k=k: reference(*at[:k], p, *at[k + 1 :]), at[k])
        np.testing.assert_allclose(found[k], expected, rtol=1e-7, atol=1e-9)


def test_of_swapped_variables(run):
    x, y = tf.placeholder(tf.float64, []), tf.placeholder(tf.float64, [])
    _, a, b = tf.while_loop(below(3), lambda i, a, b: (i + 1, b, a * 2.0), [0, x, y])
    found = run([a, b, *tf.gradients(a, [x, y]), *tf.gradients(b, [x, y])], {x: 3, y: 5})
    assert found == [10, 12, 0, 2, 4, 0]


def test_of_the_last_value_of_one_of_several(run):
    x = tf.placeholder(tf.float64, [])
    _, a, b = tf.while_loop(below(3), lambda i, a, b: (i + 1, a * x, b + a), [0, x, x])
    assert run(tf.gradients(a, x)[0], {x: 2.0}) == 32
    # b = x + x + x^2 + x^3
    assert run(tf.gradients(b, x)[0], {x: 2.0}) == 2 + 4 + 12


def test_of_what_does_not_depend_on_it_is_none():
    x = tf.placeholder(tf.float64, [])
    n = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, y * 2.0), [0, tf.constant(1.0)])[1]
    assert tf.gradients(tf.to_float(n), x) == [None]
    assert tf.gradients(y, x) == [None]


def test_a_stopped_gradient(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, y * 2.0 + tf.stop_gradient(y * x)), [0, x])[1]
    # dy/dx = 2^3, as what is stopped counts as a constant
    assert run(tf.gradients(y, x)[0], {x: 1.5}) == 8


def test_integers_and_booleans_beside(run):
    x = tf.placeholder(tf.float64, [])
    _, y, k, _ = tf.while_loop(
        below(4),
        lambda i, y, k, b: (
            i + 1,
            y * tf.cond(b, lambda: x, lambda: 1.0 + 0.0 * x),
            k * 2,
            tf.logical_not(b),
        ),
        [0, x, 1, tf.constant(True)],
    )
    assert run([tf.gradients(y, x)[0], k], {x: 2.0}) == [12, 16]


def test_of_a_branch_in_a_loop(run):
    x = tf.placeholder(tf.float64, [])

    def body(i, y):
        return i + 1, tf.cond(y < 10.0, lambda: y * x, lambda: y - x)

    y = tf.while_loop(below(6), body, [0, x])[1]

    def reference(x):
        y = x
        for _ in range(6):
            y = y * x if y < 10 else y - x
        return y

    assert run(y, {x: 2.0}) == reference(2.0)
    np.testing.assert_allclose(run(tf.gradients(y, x)[0], {x: 2.0}), difference(reference, 2.0), rtol=1e-6)


def test_of_a_loop_in_a_branch(run):
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    y = tf.cond(
        pred, lambda: tf.while_loop(below(3), lambda i, y: (i + 1, y * x), [0, x])[1], lambda: x * 7.0
    )
    dx = tf.gradients(y, x)[0]
    assert [run(dx, {x: 2.0, pred: p}) for p in (True, False)] == [32, 7]


def test_of_nested_loops_with_counts_from_the_loop_around(run):
    x = tf.placeholder(tf.float64, [])

    def outer(i, y):
        return i + 1, tf.while_loop(below(i), lambda j, z: (j + 1, tf.sin(z) + x * z), [0, y])[1]

    y = tf.while_loop(below(4), outer, [0, x])[1]

    def reference(x):
        y = x
        for i in range(4):
            for _ in range(i):
                y = np.sin(y) + x * y
        return y

    first = tf.gradients(y, x)[0]
    second = tf.gradients(first, x)[0]
    found = run([y, first, second], {x: 0.7})
    np.testing.assert_allclose(found[0], reference(0.7))
    np.testing.assert_allclose(found[1], difference(reference, 0.7), rtol=1e-7)
    np.testing.assert_allclose(
        found[2], difference(lambda p: difference(reference, p, 1e-4), 0.7, 1e-4), rtol=1e-4
    )


def test_of_a_variable_that_grows(run):
    x = tf.placeholder(tf.float64, [None])
    _, y = tf.while_loop(
        below(2),
        lambda i, y: (i + 1, tf.concat([y, y * y], 0)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    dx = tf.gradients(tf.reduce_sum(y), x)[0]
    # x + x^2 + x^2 + x^4
    np.testing.assert_allclose(run(dx, {x: [1.0, 2.0, 3.0]}), [9, 41, 121])


def test_of_written_and_read_arrays(run):
    x = tf.placeholder(tf.float64, [4])
    source = tf.TensorArray(tf.float64, 4, element_shape=[]).unstack(x)
    empty = tf.TensorArray(tf.float64, 4, element_shape=[])
    target = tf.while_loop(below(4), lambda i, t: (i + 1, t.write(3 - i, source.read(i) ** 2)), [0, empty])[1]
    weights = tf.constant([1.0, 10, 100, 1000], tf.float64)
    dx = tf.gradients(tf.reduce_sum(target.stack() * weights), x)[0]
    np.testing.assert_array_equal(run(dx, {x: [1, 2, 3, 4]}), [2000, 400, 60, 8])


def test_of_a_loop_with_maximum_iterations(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.while_loop(lambda y: y < 1e9, lambda y: y * x, [x], maximum_iterations=3)
    assert run(tf.gradients(y, x)[0], {x: 2.0}) == 32


@pytest.mark.parametrize("options", [{"swap_memory": True}, {"parallel_iterations": 1}])
def test_options_change_no_gradient(run, options):
    x = tf.placeholder(tf.float64, [2])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, tf.sin(y) * x), [0, x], **options)[1]
    plain = tf.while_loop(below(3), lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1]
    found = run([tf.gradients(tf.reduce_sum(z), x)[0] for z in (y, plain)], {x: [0.3, 0.6]})
    np.testing.assert_array_equal(*found)


def test_gradients_inside_a_body(run):
    """Newton's method: the derivative is taken in each iteration."""

    def body(i, x):
        return i + 1, x - (x**3 - 2.0) / tf.gradients(x**3 - 2.0, x)[0]

    x = tf.while_loop(below(8), body, [0, tf.constant(1.0, tf.float64)])[1]
    np.testing.assert_allclose(run(x), 2 ** (1 / 3), rtol=1e-14)


def test_gradients_inside_a_body_of_a_branch_and_of_a_loop(run):
    def body(i, x):
        y = tf.cond(x > 1.0, lambda: x * x, lambda: x * 3.0)
        z = tf.while_loop(below(2), lambda j, z: (j + 1, z * x), [0, x])[1]
        return i + 1, x * 0.5 + 0.1 * (tf.gradients(y, x)[0] + tf.gradients(z, x)[0])

    x, expected = tf.while_loop(below(3), body, [0, tf.constant(2.0, tf.float64)])[1], 2.0
    for _ in range(3):
        expected = expected * 0.5 + 0.1 * ((2 * expected if expected > 1 else 3.0) + 3 * expected**2)
    np.testing.assert_allclose(run(x), expected, rtol=1e-12)


def test_gradients_of_gradients_inside_a_body(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, tf.gradients(y**3 * x, y)[0] * 0.1), [0, x])[1]

    def reference(x):
        y = x
        for _ in range(3):
            y = 3 * y**2 * x * 0.1
        return y

    np.testing.assert_allclose(run(tf.gradients(y, x)[0], {x: 1.3}), difference(reference, 1.3), rtol=1e-7)


def test_gradients_in_a_branch_with_respect_to_what_is_around(run):
    x, pred = tf.placeholder(tf.float64, []), tf.placeholder(tf.bool, [])
    y = x * x * x
    dx = tf.cond(pred, lambda: tf.gradients(y, x)[0], lambda: x)
    assert run(dx, {x: 2.0, pred: True}) == 12


def test_training_a_variable_that_a_loop_reads(session):
    w = tf.Variable(0.5)
    x = tf.placeholder(tf.float32, [])
    y = tf.while_loop(below(3), lambda i, y: (i + 1, y * w), [0, x])[1]
    loss = tf.square(y - 8.0)
    train = tf.train.GradientDescentOptimizer(0.001).minimize(loss)
    session.run(tf.global_variables_initializer())
    for _ in range(300):
        session.run(train, {x: 1.0})
    np.testing.assert_allclose(session.run(w), 2.0, rtol=1e-3)


def test_a_large_loop(run):
    x = tf.placeholder(tf.float64, [])
    y = tf.while_loop(below(3000), lambda i, y: (i + 1, y + tf.sin(y) * 1e-3), [0, x])[1]

    def reference(x):
        y = x
        for _ in range(3000):
            y = y + np.sin(y) * 1e-3
        return y

    np.testing.assert_allclose(run(tf.gradients(y, x)[0], {x: 0.5}), difference(reference, 0.5), rtol=1e-6)


def test_what_a_branch_lacks_is_one_constant_a_kind():
    """Not one for each tensor that the gradients of all others read."""
    x = tf.placeholder(tf.float32, [8, 8])

    def branch(number):
        def build():
            y = x
            for _ in range(5):
                y = tf.tanh(y * number)
            return y

        return build

    y = tf.switch_case(tf.placeholder(tf.int32, []), [branch(float(i)) for i in range(1, 5)])
    before = [len(function.nodes) for function in y.op.node.attrs["branches"]]
    tf.gradients(y, x)
    functions = y.op.node.attrs["branches"]
    assert len(functions[0].fetches) > 4 * 5
    assert [len(function.nodes) for function in functions] == [count + 1 for count in before]


def test_a_graph_is_written_whose_branch_lacks_a_string(session):
    @tf.custom_gradient
    def doubled(x):
        text = tf.as_string(x)
        return x * 2.0, lambda dy: dy * tf.strings.to_number(text)

    x = tf.placeholder(tf.float32, [])
    y = tf.cond(x > 0.0, lambda: doubled(x), lambda: x)
    (gradient,) = tf.gradients(y, x)
    assert [session.run(gradient, {x: value}) for value in (3.0, -3.0)] == [3.0, 1.0]
    assert x.graph.as_graph_def().ByteSize()
