"""Gradients as graph: worked examples, structure, aggregation, higher orders, hand-written
rules, wrong uses.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import op_def

_unique = itertools.count()


@pytest.fixture
def run():
    with tf.Session() as session:
        yield session.run


def scalars(*values):
    return [tf.constant(v, tf.float64) for v in values]


# --- worked examples


def test_the_textbook_function(run):
    x1, x2 = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    f = tf.log(x1) + x1 * x2 - tf.sin(x2)
    value, gradients = run([f, tf.gradients(f, [x1, x2])], {x1: 2.0, x2: 5.0})
    assert value == pytest.approx(11.652, abs=5e-4)
    assert gradients[0] == pytest.approx(5.5)
    assert gradients[1] == pytest.approx(1.716, abs=5e-4)


def logistic(depth, x):
    for _ in range(depth - 1):
        x = 4.0 * x * (1.0 - x)
    return x


def test_the_logistic_map(run):
    (x,) = scalars(0.3)
    l4 = logistic(4, x)
    assert run(tf.gradients(l4, x)[0]) == pytest.approx(1.3090816, abs=1e-9)


def test_the_gradient_graph_grows_linearly_with_depth():
    sizes = []
    for depth in (10, 20, 30, 60):
        with tf.Graph() as graph:
            x = tf.placeholder(tf.float32, [])
            y = logistic(depth, x)
            before = len(graph.get_operations())
            tf.gradients(y, x)
            sizes.append(len(graph.get_operations()) - before)
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
    assert sizes[3] - sizes[2] == 3 * (sizes[1] - sizes[0])


def test_a_deep_chain_needs_no_deep_python_stack(run):
    x = tf.constant(1.0)
    y = x
    for _ in range(3000):
        y = y + 0.0
    assert run(tf.gradients(y, x)[0]) == 1.0


# --- what is asked for


def test_ys_are_summed_and_grad_ys_weigh_them(run):
    (x,) = scalars(3.0)
    ys = [x * x, x * 5.0]
    assert run(tf.gradients(ys, x)) == [11.0]
    assert run(tf.gradients(ys, x, grad_ys=[2.0, tf.constant(10.0, tf.float64)])) == [62.0]
    assert run(tf.gradients(ys, [x, x], grad_ys=[None, 0.0])) == [6.0, 6.0]


def test_an_intermediate_tensor_can_be_an_x(run):
    (x,) = scalars(3.0)
    y = x * x
    z = y * y + y
    assert run(tf.gradients(z, [y, x])) == [19.0, 114.0]
    assert run(tf.gradients(y, y)) == [1.0]
    assert run(tf.gradients([z, y], [y])) == [20.0]


def test_an_x_that_is_on_the_way_to_another_x(run):
    (x,) = scalars(2.0)
    y = x * 3.0
    z = y * x
    assert run(tf.gradients(z, [x, y])) == [12.0, 2.0]


def test_unconnected_xs_give_none_or_zeros(run):
    x, other = tf.constant([1.0, 2.0]), tf.constant([[5.0, 6.0]])
    y = x * 2.0
    assert tf.gradients(y, other) == [None]
    zeros = tf.gradients(y, [x, other], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert [z.tolist() for z in run(zeros)] == [[2, 2], [[0, 0]]]
    assert tf.gradients(tf.cast(tf.cast(x, tf.int32), tf.float32), x) == [None]
    with pytest.raises(ValueError, match="unconnected_gradients"):
        tf.gradients(y, x, unconnected_gradients="nothing")


def test_stop_gradients_count_as_constants(run):
    (x,) = scalars(3.0)
    y = x * x
    z = y * x
    assert run(tf.gradients(z, x, stop_gradients=[y])) == [9.0]
    assert run(tf.gradients(z, [x, y], stop_gradients=[x, y])) == [9.0, 3.0]
    assert tf.gradients(y, x, stop_gradients=y) == [None]
    assert run(tf.gradients(tf.stop_gradient(y) * x, x)) == [9.0]


def test_one_of_several_outputs_gets_a_gradient(run):
    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    _, right = tf.split(x, 2)
    assert run(tf.gradients(right * right, x)[0]).tolist() == [0, 0, 6, 8]
    values, _ = tf.nn.top_k(x, 2)
    assert run(tf.gradients(values, x)[0]).tolist() == [0, 0, 1, 1]
    mean, _ = tf.nn.moments(x, [0])
    assert run(tf.gradients(mean, x)[0]).tolist() == [0.25] * 4


def test_a_variable_gets_the_gradient_of_every_read(run):
    v = tf.Variable([1.0, 2.0])
    y = v * 3.0 + tf.square(v.read_value())
    (dense,) = tf.gradients(y, v)
    run(v.initializer)
    assert run(dense).tolist() == [5, 7]


# --- sparse gradients


def test_gathers_give_slices_that_add_up(run):
    v = tf.Variable(np.zeros((4, 2), np.float32))
    picked = tf.gather(v, [1, 3, 1])
    (sparse,) = tf.gradients(picked * tf.constant([[1.0], [2.0], [3.0]]), v)
    assert isinstance(sparse, tf.IndexedSlices)
    run(v.initializer)
    assert run(tf.convert_to_tensor(sparse)).tolist() == [[0, 0], [4, 4], [0, 0], [2, 2]]


def test_sparse_shares_are_joined_and_dense_ones_make_the_sum_dense(run):
    v = tf.Variable(np.zeros((3, 1), np.float32))
    a, b = tf.gather(v, [0]), tf.nn.embedding_lookup(v, tf.constant([2, 0], tf.int64))
    (joined,) = tf.gradients([a, b * 10.0], v)
    assert isinstance(joined, tf.IndexedSlices)
    (dense,) = tf.gradients([a, v * 100.0], v)
    assert not isinstance(dense, tf.IndexedSlices)
    run(v.initializer)
    assert run(tf.convert_to_tensor(joined)).ravel().tolist() == [11, 0, 10]
    assert run(dense).ravel().tolist() == [101, 100, 100]


def test_slices_may_be_given_as_incoming_gradients(run):
    x = tf.constant([[1.0], [2.0], [3.0]])
    y = x * 2.0
    slices = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([1]), tf.constant([3, 1]))
    assert run(tf.gradients(y, x, grad_ys=slices)[0]).ravel().tolist() == [0, 10, 0]


# --- higher orders


def test_gradients_can_be_differentiated_again(run):
    (x,) = scalars(2.0)
    y, found = x**4, []
    for _ in range(5):
        (y,) = tf.gradients(y, x, unconnected_gradients="zero")
        found.append(y)
    assert run(found) == pytest.approx([32, 48, 48, 24, 0])


def test_hessians_of_a_quadratic_form_and_of_a_matrix_argument(run):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 3))
    x = tf.constant(rng.standard_normal(3))
    form = tf.reduce_sum(x * tf.reshape(tf.matmul(a, x[:, None]), [-1]))
    (hessian,) = tf.hessians(form, x)
    np.testing.assert_allclose(run(hessian), a + a.T)
    m = tf.constant(rng.standard_normal((2, 2)))
    (fourth,) = tf.hessians(tf.reduce_sum(m**3), m)
    found = run(fourth)
    assert found.shape == (2, 2, 2, 2)
    np.testing.assert_allclose(found.reshape(4, 4), np.diag(6 * run(m).ravel()))
    first, second = tf.hessians(x[0] * x[1], [x, tf.identity(x)][:1]) + tf.hessians(x[0] ** 2, x)
    np.testing.assert_allclose(run(first)[0], [0, 1, 0])
    np.testing.assert_allclose(run(second)[0], [2, 0, 0])


def test_a_hessian_needs_a_static_shape_and_a_connection():
    x = tf.placeholder(tf.float32, [None])
    with pytest.raises(ValueError, match="static shape"):
        tf.hessians(tf.reduce_sum(x * x), x)
    with pytest.raises(ValueError, match="depend"):
        tf.hessians(tf.constant(1.0), tf.constant(2.0))


# --- hand-written rules


def test_a_custom_gradient_replaces_the_inner_one(run):
    @tf.custom_gradient
    def clipped(x, y):
        return x * y, lambda dz: (tf.clip_by_value(dz, -1.0, 1.0), None)

    x, y = tf.constant(3.0), tf.constant(4.0)
    z = clipped(x, y)
    dx, dy = tf.gradients(z * 100.0, [x, y])
    assert run([z, dx]) == [12.0, 1.0]
    assert dy is None
    assert clipped.__name__ == "clipped"


def test_a_custom_gradient_of_several_values_can_be_differentiated_again(run):
    @tf.custom_gradient
    def powers(x):
        return [x * x, x * x * x], lambda d2, d3: d2 * 2.0 * x + d3 * 3.0 * x * x

    (x,) = scalars(2.0)
    square, cube = powers(x)
    (first,) = tf.gradients([square, cube], x)
    (second,) = tf.gradients(first, x)
    assert run([square, cube, first, second]) == [4.0, 8.0, 16.0, 14.0]


def test_wrong_custom_gradients_are_refused():
    x = tf.constant(1.0)
    with pytest.raises(ValueError, match="grad_fn"):
        tf.custom_gradient(lambda v: v)(x)
    two = tf.custom_gradient(lambda v: (v * 1.0, lambda dy: [dy, dy]))(x)
    with pytest.raises(ValueError, match="1 gradients; got 2"):
        tf.gradients(two, x)


def test_an_override_map_chooses_registered_gradients(run):
    name = f"Tenfold{next(_unique)}"

    @tf.RegisterGradient(name)
    def tenfold(op, dy):
        assert op.type == "Square"
        return dy * 10.0

    x = tf.constant(3.0)
    with tf.get_default_graph().gradient_override_map({"Square": name}):
        y = tf.square(x)
    assert run(tf.gradients(y, x)) == [10.0]
    assert run(tf.gradients(tf.square(x), x)) == [6.0]
    with pytest.raises(ValueError, match="already"):
        tf.RegisterGradient(name)(tenfold)
    with tf.get_default_graph().gradient_override_map({"Square": name + "x"}):
        z = tf.square(x)
    with pytest.raises(LookupError, match=f"Nearest: {name}"):
        tf.gradients(z, x)


# --- placement and names


def test_gradients_are_named_after_their_operations_and_may_sit_beside_them():
    with tf.device("/cpu:1"):
        x = tf.placeholder(tf.float32, [2, 2])
        y = tf.matmul(x, x, name="product")
    before = set(tf.get_default_graph().get_operations())
    (beside,) = tf.gradients(y, x, colocate_gradients_with_ops=True)
    (free,) = tf.gradients(y, x, name="free")
    made = [op for op in tf.get_default_graph().get_operations() if op not in before]
    assert all(op.name.startswith(("gradients/", "free/")) for op in made)
    products = [op for op in made if op.type == "MatMul"]
    assert [op.device for op in products] == ["/device:CPU:1"] * 2 + [""] * 2
    assert "product_grad" in products[0].name
    assert beside.shape.as_list() == free.shape.as_list() == [2, 2]


# --- wrong uses


def test_wrong_uses_are_typed_errors():
    x, n = tf.constant([1.0, 2.0]), tf.constant([1, 2])
    y = x * 2.0
    with pytest.raises(TypeError, match="floating"):
        tf.gradients(n * 2, n)
    with pytest.raises(ValueError, match="one grad_y"):
        tf.gradients([y, y], x, grad_ys=[1.0])
    with pytest.raises(ValueError, match="shape"):
        tf.gradients(y, x, grad_ys=[tf.constant([1.0, 2.0, 3.0])])
    with pytest.raises(TypeError):
        tf.gradients(y, x, grad_ys=[tf.constant([1, 2])])
    with pytest.raises(TypeError, match="grad_ys"):
        tf.gradients(tf.cast(x, tf.complex64), x)
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    with pytest.raises(ValueError, match="graph"):
        tf.gradients(y, foreign)


def test_an_operation_without_a_rule_is_named(run):
    x = tf.constant([1.0, 2.0])
    y = op_def("PreventGradient")(x, message="not here", name="guarded")
    with pytest.raises(NotImplementedError, match="not here") as caught:
        tf.gradients(y, x)
    assert caught.value.op == "guarded"
    assert "test_gradients.py" in caught.value.source


def test_gradients_are_added_to_the_graph_of_the_ys():
    with tf.Graph() as graph:
        x = tf.constant(3.0)
        y = x * x
    (gradient,) = tf.gradients(y, x, grad_ys=[2.0])
    assert gradient.graph is graph
    with tf.Session(graph=graph) as session:
        assert session.run(gradient) == 12.0


def test_a_graph_knows_the_derivatives_that_were_made_in_it():
    with tf.Graph() as graph:
        x = tf.constant(3.0, name="x")
        y = tf.sin(tf.cos(x, name="inner"), name="outer")
        before = set(graph.operations)
        tf.gradients(y, x)
        assert graph.derivatives.keys() == graph.operations.keys() - before
        assert graph.derivatives["gradients/inner_grad/Sin"] == "inner"
        known = dict(graph.derivatives)
        with pytest.raises(tf.errors.InvalidArgumentError), graph.rollback_on_error():
            tf.reshape(tf.gradients(y, x)[0], [2])
        tf.exp(y)
    assert graph.derivatives == known


def test_a_list_that_a_loop_keeps_for_its_gradient_is_no_derivative():
    with tf.Graph() as graph:
        x = tf.constant(3.0)
        y = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.sin(a)), [0, x], name="loop")[1]
        before = set(graph.operations)
        tf.gradients(y, x)
    added = graph.operations.keys() - before
    assert any(name.startswith("loop/") for name in added)
    assert {name for name in added if not name.startswith("loop/")} == graph.derivatives.keys()


def test_the_gradient_of_an_operation_has_its_scope_in_its_name() -> None:
    with tf.Graph() as graph:
        with tf.name_scope("layer_2"):
            x = tf.constant([1.0, 2.0], name="x")
            y = tf.multiply(x, x, name="y")
        tf.gradients(y, [x])
    assert any(op.name.startswith("gradients/layer_2/y_grad/") for op in graph.get_operations())
