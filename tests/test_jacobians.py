"""`jacobian` and `hessians`: values, the number of sweeps, shapes, structures, wrong uses."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf


@pytest.fixture
def session():
    with tf.Session() as session:
        yield session


def products(session, fetch, feeds):
    """The products that run when ``fetch`` is computed: how many of one element, and the length of each
    batch, which is the number of sweeps.
    """
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    session.run(fetch, feeds, options=options, run_metadata=metadata)
    names = [n.node_name for dev in metadata.step_stats.dev_stats for n in dev.node_stats]
    ran = [session.graph.get_operation_by_name(name) for name in names]
    batches = [op.outputs[0].shape.as_list()[0] for op in ran if op.type == "BatchMatMulV2"]
    return sum(op.type == "MatMul" for op in ran), batches


def layer(n, m):
    """tanh(W x) from R^n to R^m, with W and x as placeholders; and values for them."""
    rng = np.random.default_rng(0)
    x, w = tf.placeholder(tf.float64, [n]), tf.placeholder(tf.float64, [m, n])
    y = tf.reshape(tf.tanh(tf.matmul(w, x[:, None])), [m])
    values = {x: rng.standard_normal(n), w: rng.standard_normal((m, n))}
    return x, y, values, (1 - np.tanh(values[w] @ values[x])[:, None] ** 2) * values[w]


@pytest.mark.parametrize(("n", "m", "sweeps"), [(3, 4, 3), (4, 3, 3), (3, 3, 3), (1, 5, 1), (5, 1, 1)])
def test_a_jacobian_takes_the_fewer_sweeps(session, n, m, sweeps):
    x, y, values, expected = layer(n, m)
    found = tf.jacobian(y, x)
    assert found.shape.as_list() == [m, n]
    np.testing.assert_allclose(session.run(found, values), expected, rtol=1e-12)
    assert products(session, found, values) == (1, [sweeps])


def test_jacfwd_takes_a_sweep_a_column_and_jacrev_one_a_row(session):
    x, w = tf.placeholder(tf.float64, [3]), tf.placeholder(tf.float64, [4, 3])
    rng = np.random.default_rng(1)
    values = {x: rng.standard_normal(3), w: rng.standard_normal((4, 3))}

    def f(x):
        return tf.reshape(tf.tanh(tf.matmul(w, x[:, None])), [4])

    by_columns, by_rows = tf.jacfwd(f)(x), tf.jacrev(f)(x)
    np.testing.assert_allclose(*session.run([by_columns, by_rows], values), rtol=1e-12)
    assert products(session, by_columns, values) == (1, [3])
    assert products(session, by_rows, values) == (1, [4])


def test_blocks_have_the_shapes_of_both_and_their_structure(session):
    x, v = tf.constant([[1.0, 2.0, 3.0]]), tf.Variable([2.0, 5.0])
    ys = {"sum": tf.reduce_sum(x * x), "outer": v[:, None] * x}
    found = tf.jacobian(ys, (x, v))
    session.run(v.initializer)
    values = session.run(found)
    assert isinstance(values["sum"], tuple)
    assert values["sum"][0].tolist() == [[2, 4, 6]]
    assert values["sum"][1].tolist() == [0, 0]  # not connected, beside one that is
    by_x, by_v = values["outer"]
    assert by_x.shape == (2, 3, 1, 3)
    np.testing.assert_array_equal(by_x[:, :, 0], np.einsum("i,jk->ijk", [2.0, 5.0], np.eye(3)))
    np.testing.assert_array_equal(by_v, np.einsum("ik,j->ijk", np.eye(2), [1.0, 2.0, 3.0]))


def test_one_static_shape_is_enough(session):
    x, s = tf.placeholder(tf.float32, [None]), tf.constant([2.0, 3.0])
    by_rows = tf.jacobian(tf.stack([tf.reduce_sum(x * x), tf.reduce_max(x)]), x)
    by_columns = tf.jacobian(x * s[0] + s[1], s)
    assert by_rows.shape.as_list() == [2, None]
    assert by_columns.shape.as_list() == [None, 2]
    first, second = session.run([by_rows, by_columns], {x: [1.0, 5.0, 2.0]})
    assert first.tolist() == [[2, 10, 4], [0, 1, 0]]
    assert second.tolist() == [[1, 1], [5, 1], [2, 1]]


def test_what_has_no_elements_has_no_derivatives(session):
    empty, x = tf.zeros([0, 3]), tf.constant([1.0, 2.0])
    total, none = tf.reduce_sum(empty * 2.0) + x, x[:0] * 2.0
    shapes = [t.shape for t in session.run([tf.jacobian(total, empty), tf.jacobian(none, x)])]
    assert shapes == [(2, 0, 3), (0, 2)]


def test_dtypes_may_differ(session):
    x = tf.constant([1.0, 2.0], tf.float64)
    y = tf.cast(x * x, tf.float32)
    assert session.run(tf.jacobian(y, x)).tolist() == [[2, 0], [0, 4]]
    assert tf.jacobian(tf.reduce_sum(y), x).dtype is tf.float64  # a gradient
    assert tf.jacobian(y, x).dtype is tf.float32  # a tangent


def test_rows_of_a_gather_are_dense(session):
    v = tf.Variable([[1.0], [2.0], [3.0]])
    found = tf.jacobian(tf.reduce_sum(tf.gather(v, [2, 0]) ** 2), v)
    session.run(v.initializer)
    assert session.run(found).tolist() == [[2], [0], [6]]


def test_hessians_take_a_forward_sweep_an_element(session):
    x, w = tf.placeholder(tf.float64, [3]), tf.placeholder(tf.float64, [3, 3])
    form = tf.reduce_sum(tf.tanh(tf.matmul(w, x[:, None])))
    (found,) = tf.hessians(form, x)
    rng = np.random.default_rng(0)
    values = {x: rng.standard_normal(3), w: rng.standard_normal((3, 3))}
    t = np.tanh(values[w] @ values[x])
    expected = np.einsum("k,ki,kj->ij", -2 * t * (1 - t**2), values[w], values[w])
    np.testing.assert_allclose(session.run(found, values), expected, rtol=1e-10)
    assert products(session, found, values) == (1, [3, 3])  # the product, then W and its transpose


def test_hessians_of_several_xs_and_of_a_linear_function(session):
    v, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    found = tf.hessians([tf.reduce_sum(v**3), tf.reduce_sum(x)], [v, x])
    session.run(v.initializer)
    by_v, by_x = session.run(found)
    assert by_v.tolist() == [[6, 0], [0, 12]]
    assert by_x.tolist() == [[0, 0], [0, 0]]


def test_wrong_uses_are_typed_errors_with_the_users_line():
    x, n, free = tf.constant([1.0, 2.0]), tf.constant([1, 2]), tf.placeholder(tf.float32, [None])
    y = x * tf.cast(n, tf.float32)
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    cases = [
        (ValueError, "depends on none", lambda: tf.jacobian([y, tf.constant(1.0)], x)),
        (ValueError, "depends on none", lambda: tf.jacobian(tf.stop_gradient(y), x)),
        (TypeError, "floating", lambda: tf.jacobian(y, n)),
        (TypeError, "floating", lambda: tf.jacobian(n, x)),
        (TypeError, "floating", lambda: tf.jacobian(tf.cast(y, tf.complex64), x)),
        (ValueError, "static shape", lambda: tf.jacobian(free * 2.0, free)),
        (ValueError, "at least one", lambda: tf.jacobian(y, [])),
        (ValueError, "not an element of this graph", lambda: tf.jacobian(y, foreign)),
        (ValueError, "do not depend", lambda: tf.hessians(y, free)),
        (ValueError, "static shape", lambda: tf.hessians(tf.reduce_sum(free * free), free)),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message) as caught:
            call()
        assert "test_jacobians.py" in caught.value.source


@pytest.mark.parametrize(
    "second",
    [lambda y, x: tf.hessians(y, x)[0], lambda y, x: tf.jacobian(tf.gradients(y, x)[0], x)],
    ids=["hessians", "jacobian"],
)
def test_second_derivatives_by_a_rule_that_clips_are_those_of_reverse_mode(second):
    @tf.custom_gradient
    def cubes(x):
        return x**3, lambda dy: tf.clip_by_value(dy, -1.0, 1.0) * 3 * x**2

    x = tf.constant([1.0, 2.0])
    y = tf.reduce_sum(cubes(x) ** 2)
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(second(y, x)), [[6, 0], [0, 12]])
