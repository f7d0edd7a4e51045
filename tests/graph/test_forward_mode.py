"""Forward mode over whole graphs: worked examples, random graphs against reverse mode and differences, what
may be an x, wrong uses.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.graph.derivatives import gradients
from flowrt.graph.derivatives.forward_mode import ForwardSweep
from flowrt.graph.op_def import op_def
from tests.graph.random_graphs import RandomGraph

_unique = itertools.count()


@pytest.fixture
def run():
    with tf.Session() as session:
        yield session.run


def scalars(*values):
    return [tf.constant(v, tf.float64) for v in values]


def along(y, xs, tangents, **options):
    (moved,) = tf.forward_gradients(y, xs, tangents, **options)
    return moved


# --- worked examples


def test_the_textbook_function_with_all_its_tangents_and_adjoints(run):
    x1, x2 = scalars(2.0, 5.0)
    log, product, sine = tf.log(x1), x1 * x2, tf.sin(x2)
    total = log + product
    f = total - sine
    steps = [log, product, sine, total, f]
    zero = {"unconnected_gradients": "zero"}
    moved = [tf.forward_gradients(steps, [x1, x2], t, **zero) for t in ([1.0, None], [None, 1.0])]
    values, by_x1, by_x2 = run([steps, *moved])
    assert values == pytest.approx([0.693, 10.0, -0.959, 10.693, 11.652], abs=5e-4)
    assert by_x1 == pytest.approx([0.5, 5.0, 0.0, 5.5, 5.5])
    assert by_x2 == pytest.approx([0.0, 2.0, 0.284, 2.0, 1.716], abs=5e-4)
    adjoints = run(tf.gradients(f, [f, total, sine, product, log, x1, x2]))
    assert adjoints == pytest.approx([1.0, 1.0, -1.0, 1.0, 1.0, 5.5, 1.716], abs=5e-4)


def logistic(depth, x):
    for _ in range(depth - 1):
        x = 4.0 * x * (1.0 - x)
    return x


def l4_derivative(x):
    """The derivative of the fourth logistic iterate, as a polynomial."""
    a, b = 1 - 8 * x + 8 * x**2, 1 - 2 * x
    return (
        128 * x * (1 - x) * (-8 + 16 * x) * b**2 * a
        + 64 * (1 - x) * b**2 * a**2
        - 64 * x * b**2 * a**2
        - 256 * x * (1 - x) * b * a**2
    )


def test_the_logistic_map(run):
    (x,) = scalars(0.3)
    l4, nearby = logistic(4, x), logistic(4, x + 1e-8)
    value, forward, reverse, moved = run([l4, along(l4, x, [1.0]), tf.gradients(l4, x)[0], nearby])
    assert value == pytest.approx(0.99434496, abs=1e-12)
    assert forward == pytest.approx(1.3090816, abs=1e-12)
    assert forward == pytest.approx(l4_derivative(0.3), abs=1e-12)
    assert forward == pytest.approx(reverse, abs=1e-12)
    assert 1e-7 < abs((moved - value) / 1e-8 - forward) < 5e-6  # what a difference loses


def test_the_tangent_graph_grows_linearly_with_depth():
    def added(depth):
        with tf.Graph() as graph:
            x = tf.placeholder(tf.float32, [])
            y = tf.maximum(logistic(depth, x), 0.0)
            before = graph.version
            tf.forward_gradients(y, x, [1.0])
            return graph.version - before

    assert added(30) - added(20) == added(20) - added(10)
    assert added(60) - added(30) == 3 * (added(20) - added(10))


def test_rules_by_transposition_look_at_their_operation_only(monkeypatch):
    """Otherwise a sweep over n of them looks at n² operations."""
    looked_at = []
    original = gradients.ancestors
    monkeypatch.setattr(gradients, "ancestors", lambda *a: looked_at.append(found := original(*a)) or found)
    x = y = tf.placeholder(tf.float32, [])
    for _ in range(50):
        y = tf.maximum(y, 0.5 * y)
    tf.forward_gradients(y, x, [1.0])
    assert len(looked_at) == 50
    assert max(map(len, looked_at)) < 30


def test_a_deep_chain_needs_no_deep_python_stack(run):
    x = y = tf.constant(1.0)
    for _ in range(3000):
        y = y + 0.0
    assert run(along(y, x, [1.0])) == 1.0


# --- random graphs

seeds = st.integers(0, 10**6)


def dot(a, b):
    return sum(float(np.sum(x * y)) for x, y in zip(a, b, strict=True))


@settings(max_examples=40)
@given(seeds)
def test_forward_mode_is_the_adjoint_of_reverse_mode_and_agrees_with_differences(seed):
    graph = RandomGraph(seed)
    if not graph.ys:
        return
    v, u = graph.directions(graph.xs), graph.directions(graph.ys)
    with graph.graph:
        moved = tf.forward_gradients(graph.ys, graph.xs, v)
        shares = [
            tf.convert_to_tensor(g) for g in tf.gradients(graph.ys, graph.xs, u, unconnected_gradients="zero")
        ]
    jv, jtu = graph.run([moved, shares])
    np.testing.assert_allclose(dot(u, jv), dot(jtu, v), rtol=1e-9, atol=1e-11)
    step = 1e-6
    ahead, behind = (graph.run(graph.ys, s, v) for s in (step, -step))
    for tangent, a, b in zip(jv, ahead, behind, strict=True):
        np.testing.assert_allclose(tangent, (a - b) / (2 * step), rtol=1e-5, atol=1e-6)


@settings(max_examples=25)
@given(seeds)
def test_second_derivatives_are_the_same_in_all_four_orders(seed):
    graph = RandomGraph(seed, calls=8)
    if not graph.ys:
        return
    v, xs = graph.directions(graph.xs), graph.xs
    zero = {"unconnected_gradients": "zero"}
    with graph.graph:
        loss = tf.add_n([tf.reduce_sum(y) for y in graph.ys])
        first = [tf.convert_to_tensor(g) for g in tf.gradients(loss, xs, **zero)]
        slope = along(loss, xs, v)
        orders = [
            tf.forward_gradients(first, xs, v, **zero),
            tf.gradients(first, xs, v, **zero),
            tf.gradients(slope, xs, **zero),
        ]
        twice = along(slope, xs, v, **zero)
        orders = [[tf.convert_to_tensor(t) for t in order] for order in orders]
    forward_over_reverse, reverse_over_reverse, reverse_over_forward = (
        values := graph.run([*orders, twice])
    )[:3]
    for a, b, c in zip(forward_over_reverse, reverse_over_reverse, reverse_over_forward, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(c, b, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(values[3], dot(v, reverse_over_reverse), rtol=1e-8, atol=1e-9)


# --- what is asked for


def test_tangents_of_several_xs_add_up_and_none_is_zero(run):
    x, y = scalars(3.0, 5.0)
    product = x * y
    assert run(along(product, [x, y], [1.0, 10.0])) == 35.0
    assert run(along(product, [x, y], [None, 10.0])) == 30.0
    assert run(along(product, [x, x], [1.0, 2.0])) == 15.0
    assert tf.forward_gradients(product, [x, y], [None, None]) == [None]
    assert tf.forward_gradients([], x, [1.0]) == []


def test_an_x_that_is_on_the_way_moves_by_itself_and_by_the_others(run):
    (x,) = scalars(2.0)
    y = x * 3.0
    z = y * x
    assert run(tf.forward_gradients([z, y, x], [x, y], [1.0, 10.0])) == [32.0, 13.0, 1.0]


def test_unconnected_ys_give_none_or_zeros(run):
    x, other = tf.constant([1.0, 2.0]), tf.constant([[5.0, 6.0]])
    y = x * 2.0
    assert tf.forward_gradients(y, other, [[[1.0, 1.0]]]) == [None]
    blocked = tf.cast(tf.cast(x, tf.int32), tf.float32)
    assert tf.forward_gradients([blocked, tf.stop_gradient(y)], x, [[1.0, 1.0]]) == [None, None]
    zeros = tf.forward_gradients([y, other], x, [[1.0, 0.0]], unconnected_gradients="zero")
    assert [z.tolist() for z in run(zeros)] == [[2, 0], [[0, 0]]]


def test_stop_gradients_count_as_constants(run):
    (x,) = scalars(3.0)
    y = x * x
    z = y * x
    assert run(along(z, x, [1.0], stop_gradients=y)) == 9.0
    assert run(along(z, [x, y], [1.0, 1.0], stop_gradients=[x, y])) == 12.0
    assert tf.forward_gradients(y, x, [1.0], stop_gradients=y) == [None]


def test_some_outputs_of_an_operation_move(run):
    x = tf.constant([4.0, 2.0, 3.0])
    values, indices = tf.nn.top_k(x, 2)
    assert run(along(values * tf.cast(indices + 1, tf.float32), x, [[1.0, 0.0, 10.0]])).tolist() == [1, 30]


def test_a_variable_moves_in_every_read_of_it(run):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    read, whole = tf.gather(v, [1, 0, 1]), tf.reduce_sum(v * v)
    moved = tf.forward_gradients([read, whole], v, [tf.constant([[1.0, 0.0], [0.0, 10.0]])])
    run(v.initializer)
    rows, slope = run(moved)
    assert rows.tolist() == [[0, 10], [1, 0], [0, 10]]
    assert slope == 82.0


def test_slices_may_be_tangents_and_ys(run):
    v = tf.Variable([[1.0], [2.0], [3.0]])
    (sparse,) = tf.gradients(tf.reduce_sum(tf.gather(v, [2, 0]) ** 3), v)
    assert isinstance(sparse, tf.IndexedSlices)
    (moved,) = tf.forward_gradients(sparse, v, [sparse])
    assert isinstance(moved, tf.IndexedSlices)
    run(v.initializer)
    dense, product = run([tf.convert_to_tensor(sparse), tf.convert_to_tensor(moved)])
    assert dense.ravel().tolist() == [3, 0, 27]
    assert product.ravel().tolist() == [6 * 1 * 3, 0, 6 * 3 * 27]


def test_shapes_may_be_unknown(run):
    x = tf.placeholder(tf.float32, [None, 2])
    dx = tf.placeholder(tf.float32, [None, None])
    moved = along(tf.maximum(x, 0.0) * x, x, [dx])
    assert run(moved, {x: [[3.0, -1.0]], dx: [[1.0, 1.0]]}).tolist() == [[6, 0]]


def test_complex_tensors_move(run):
    z = tf.constant(1 + 2j, tf.complex128)
    y = tf.real(z * z * tf.conj(z))  # |z|² Re z, along i: 2 Im z Re z
    assert run(along(y, z, [1j])) == pytest.approx(4.0)


def test_tangents_go_beside_their_operations_and_are_named_after_them():
    with tf.device("/cpu:1"):
        x = tf.placeholder(tf.float32, [2, 2])
        y = tf.matmul(x, x, name="product")
    graph = tf.get_default_graph()
    before = graph.version
    along(y, x, [tf.ones([2, 2])], colocate_gradients_with_ops=True)
    along(y, x, [tf.ones([2, 2])], name="free")
    made = [op for op in graph.get_operations()[before:] if op.type == "MatMul"]
    assert [op.device for op in made] == ["/device:CPU:1"] * 2 + [""] * 2
    assert [op.name for op in made][::3] == [
        "forward_gradients/product_jvp/MatMul",
        "free/product_jvp/MatMul_1",
    ]


def test_a_sweep_can_be_repeated_over_what_was_found_once(run):
    x, y = scalars(3.0, 5.0)
    loose = tf.constant(1.0)
    sweep = ForwardSweep([x * y, loose], [x, y])
    moved = [sweep([1.0, None])[0], sweep([None, 1.0])[0]]
    assert run(moved) == [5.0, 3.0]
    assert sweep.unmoved() == [loose]


def test_tangents_of_a_graph_that_is_not_the_default_one(run):
    with tf.Graph() as graph:
        x = tf.constant(3.0)
        y = x * x
    (moved,) = tf.forward_gradients(y, x, [2.0])
    assert moved.graph is graph


# --- rules that override


def test_an_override_is_transposed(run):
    name = f"StraightThrough{next(_unique)}"

    @tf.RegisterGradient(name)
    def straight_through(op, dy):
        return dy * 10.0

    x = tf.constant(2.5)
    with tf.get_default_graph().gradient_override_map({"Round": name, "Square": name}):
        straight, y = tf.round(x), tf.square(x)
    assert tf.forward_gradients(tf.round(x), x, [1.0]) == [None]
    assert run(tf.forward_gradients([straight, y], x, [3.0])) == [30.0, 30.0]


# --- wrong uses


def test_wrong_uses_are_typed_errors_with_the_users_line():
    x, n = tf.constant([1.0, 2.0]), tf.constant([1, 2])
    y = x * tf.cast(n, tf.float32)
    with tf.Graph().as_default():
        foreign = tf.constant([1.0, 2.0])
    cases = [
        (TypeError, "ys of floating", (n, x, [[1.0, 1.0]])),
        (TypeError, "ys of floating", (tf.Variable([1.0]).handle, x, [[1.0, 1.0]])),
        (TypeError, "expected None", (y, [x, n], [None, [1, 1]])),
        (TypeError, "float32", (y, x, [tf.constant([1, 1])])),
        (ValueError, "one tangent for each of 2 xs; got 1", (y, [x, n], [[1.0, 1.0]])),
        (ValueError, r"shape \[2\].*; got \(3,\)", (y, x, [[1.0, 1.0, 1.0]])),
        (ValueError, "not an element of this graph", (y, foreign, [[1.0, 1.0]])),
        (ValueError, "not an element of this graph", (y, x, [foreign])),
    ]
    for error, message, arguments in cases:
        with pytest.raises(error, match=message) as caught:
            tf.forward_gradients(*arguments)
        assert "test_forward_mode.py" in caught.value.source
    with pytest.raises(ValueError, match="unconnected_gradients"):
        tf.forward_gradients(y, x, [None], unconnected_gradients="nothing")


def test_a_tangent_of_a_variable_has_its_shape():
    v = tf.Variable([1.0, 2.0])
    with pytest.raises(ValueError, match=r"shape \[2\]"):
        tf.forward_gradients(v * 2.0, v, [1.0])


def test_an_operation_without_a_rule_is_named():
    x = tf.constant([1.0, 2.0])
    y = op_def("PreventGradient")(x, message="not here", name="guarded")
    with pytest.raises(NotImplementedError, match="not here") as caught:
        tf.forward_gradients(y, x, [[1.0, 1.0]])
    assert caught.value.op == "guarded"
    assert "test_forward_mode.py" in caught.value.source
