"""What becomes one group: whole layers, losses, their gradients, gathers; and that it computes what the plain
kernels do.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels import loop_layout
from flowrt.executor.kernels.fused_kernel import FusedKernel
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.fusion.fuse import MIN_ALONE
from tests.executor.fused_sessions import both, fused_of, plans_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ROWS, COLUMNS = 6, 10
BATCH = ROWS
"""What graphs know of the number of rows."""


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def kernels_of(session):
    """The ops that a session's last plan calls one by one, products and updates not among them."""
    return [
        node.op.name
        for part in plans_of(session)[-1].partitions.values()
        for node in part.subgraph
        if node.op.effect is Effect.PURE and not node.op.alias and "group" not in node.attrs
        if node.op.name not in ("Const", "_Feed", "MatMul", "Conv2D", "NoOp")
    ]


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")


# --- one group each


def with_gradients(y, *inputs):
    """``y``, and the gradients of a sum over it in which every element counts differently."""
    shape = [ROWS if n is None else n for n in y.shape.as_list()]
    return [y, *tf.gradients(y, inputs, tf.constant(values(*shape, seed=9)))]


def logits():
    return tf.placeholder(tf.float32, [BATCH, COLUMNS])


def softmax():
    x = logits()
    return with_gradients(tf.nn.softmax(x * 2.0), x), {"x": x}


def log_softmax():
    x = logits()
    return with_gradients(tf.nn.log_softmax(x + 1.0), x), {"x": x}


def sparse_cross_entropy():
    x, labels = logits(), tf.placeholder(tf.int64, [ROWS])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))
    return [loss, *tf.gradients(loss, x)], {"x": x, "labels": labels}


def dense_cross_entropy():
    x, y = logits(), logits()
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=x))
    return [loss, *tf.gradients(loss, x)], {"x": x, "y": y}


def layer_norm():
    x = logits()
    gain, bias = tf.Variable(values(COLUMNS, seed=1)), tf.Variable(values(COLUMNS, seed=2))
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    y = (x - mean) * tf.rsqrt(variance + 1e-5) * gain + bias
    return with_gradients(y, x, gain, bias), {"x": x}


def bias_and_activation_behind_a_product():
    x, w = logits(), tf.Variable(values(COLUMNS, 7, seed=1))
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), tf.Variable(values(7, seed=2)))), {"x": x}


def rows_of_an_embedding():
    ids, table = tf.placeholder(tf.int64, [ROWS]), tf.placeholder(tf.float32, [50, COLUMNS])
    x = logits()
    return tf.gather(table, ids) * 4.0 + x, {"labels": ids, "table": table, "x": x}


def rows_of_a_variable():
    table, x = tf.Variable(values(50, COLUMNS, seed=4)), logits()
    ids = tf.placeholder(tf.int64, [ROWS])
    return tf.nn.embedding_lookup(table, ids) + tf.sqrt(tf.abs(x)), {"labels": ids, "x": x}


def a_sum_of_products_that_share_nothing():
    a, b, z, row = logits(), logits(), logits(), tf.placeholder(tf.float32, [COLUMNS])
    y = a * row + tf.sqrt(tf.abs(b)) * z
    return y, {"x": a, "y": b, "z": z, "row": row}


def casts():
    ids, x = tf.placeholder(tf.int64, [ROWS, COLUMNS]), logits()
    return tf.cast(tf.cast(ids, tf.float32) * x > 0.5, tf.float32) - x, {"ids": ids, "x": x}


def broadcasts():
    x, row = logits(), tf.placeholder(tf.float32, [COLUMNS])
    column = tf.placeholder(tf.float32, [ROWS, 1])
    return tf.reduce_sum(tf.broadcast_to(row, [ROWS, COLUMNS]) * x + tf.exp(x) * column), {
        "x": x, "row": row, "column": column,
    }  # fmt: skip


FEEDS = {
    "x": values(ROWS, COLUMNS),
    "y": values(ROWS, COLUMNS, seed=1) ** 2,
    "z": values(ROWS, COLUMNS, seed=5),
    "row": values(COLUMNS, seed=2),
    "column": values(ROWS, 1, seed=3),
    "table": values(50, COLUMNS, seed=4),
    "labels": np.array([3, 0, 9, 9, 1, 5]),
    "ids": np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) - 30,
}


@pytest.mark.parametrize(
    "build",
    [
        softmax, log_softmax, sparse_cross_entropy, dense_cross_entropy, layer_norm,
        bias_and_activation_behind_a_product,
        rows_of_an_embedding, rows_of_a_variable, casts, a_sum_of_products_that_share_nothing, broadcasts,
    ],
    ids=lambda build: build.__name__,
)  # fmt: skip
def test_is_one_group(monkeypatch, build):
    check_one_group(monkeypatch, build)


@pytest.mark.parametrize(
    "build", [softmax, log_softmax, sparse_cross_entropy, dense_cross_entropy, layer_norm]
)
def test_is_one_group_of_a_batch_that_only_the_feed_knows(monkeypatch, build):
    monkeypatch.setitem(globals(), "BATCH", None)
    check_one_group(monkeypatch, build)


def check_one_group(monkeypatch, build):
    with tf.Graph().as_default():
        names = build()[1]
    plain, compiled, groups = both(monkeypatch, build, {name: FEEDS[name] for name in names})
    assert len(groups) == 1
    for one, other in zip(*map(flat, (plain, compiled)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
    with tf.Graph().as_default(), tf.Session() as session:
        fetches, feeds = build()
        session.run(tf.global_variables_initializer())
        session.run(fetches, {feeds[name]: FEEDS[name] for name in names})
        assert kernels_of(session) == []


def flat(steps):
    """The arrays of a session's one step."""
    (fetched,) = steps
    return fetched if isinstance(fetched, list) else [fetched]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "along", [tf.nn.softmax, tf.nn.log_softmax, lambda x: x - tf.reduce_max(x, 1, keepdims=True)]
)
@pytest.mark.parametrize("other", [tf.exp, tf.negative, tf.nn.relu])
def test_what_is_read_along_rows_is_not_written_over_before_that(monkeypatch, along, other, first):
    """Not even where nobody else reads it."""

    def build():
        x = logits()
        y = tf.matmul(x, tf.constant(values(COLUMNS, COLUMNS, seed=7)))
        both_of = [other(y), along(y)] if first else [along(y), other(y)]
        return [both_of[0] * 2.0, both_of[1] + 1.0], {"x": x}

    plain, compiled, _ = both(monkeypatch, build, {"x": FEEDS["x"]})
    for one, another in zip(*map(flat, (plain, compiled)), strict=True):
        np.testing.assert_allclose(another, one, rtol=1e-5, atol=1e-5)


def test_rows_that_are_gathered_are_not_written_over_before_that(monkeypatch):
    def build():
        table = tf.matmul(x := logits(), tf.constant(values(COLUMNS, COLUMNS, seed=7)))
        ids = tf.constant([3, 0, 5, 5, 1, 2])
        return [tf.exp(table) * 2.0, tf.gather(table, ids) + 1.0], {"x": x}

    plain, compiled, _ = both(monkeypatch, build, {"x": FEEDS["x"]})
    for one, another in zip(*map(flat, (plain, compiled)), strict=True):
        np.testing.assert_allclose(another, one, rtol=1e-5, atol=1e-5)


# --- rows' values that are added up


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean])
def test_rows_values_are_added_up_once_each(monkeypatch, reduce, keep):
    def build():
        x = tf.placeholder(tf.float32, [2, 3, 5])
        return reduce(tf.exp(tf.reduce_max(x * 2.0, -1, keepdims=keep))), {"x": x}

    plain, compiled, groups = both(monkeypatch, build, {"x": values(2, 3, 5)})
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)
    assert list(map(len, groups)) == [4]


def test_totals_of_rows_are_the_same_on_any_number_of_threads(monkeypatch):
    def build():
        x = tf.placeholder(tf.float32, [40, 5])
        return tf.reduce_mean(tf.reduce_sum(tf.exp(x), -1)), {"x": x}

    monkeypatch.setattr(loop_layout, "PARALLEL_NS", 0)
    plain, compiled, _ = both(monkeypatch, build, {"x": values(40, 5)})
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)


# --- one operation of many elements


@pytest.mark.parametrize(("size", "groups"), [(MIN_ALONE, [["Exp"]]), (MIN_ALONE - 1, [])])
def test_a_lone_operation_of_many_elements_is_a_loop(eager, size, groups):
    x = tf.placeholder(tf.float32, [size])
    y = tf.exp(x)
    with tf.Session() as session:
        found = session.run(y, {x: np.full(size, 0.5)})
        assert fused_of(session) == groups
    np.testing.assert_allclose(found, np.exp(np.float32(0.5)), rtol=1e-6)


def test_a_view_of_many_elements_stays_a_view(eager):
    x = tf.placeholder(tf.float32, [MIN_ALONE])
    with tf.Session() as session:
        session.run(tf.reshape(x, [2, -1]), {x: np.zeros(MIN_ALONE)})
        assert fused_of(session) == []


def test_a_graph_of_pooling_alone_has_compiled_loops(eager):
    x = tf.placeholder(tf.float32, [1, 6, 6, 16])
    y = tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
    with tf.Session() as session:
        session.run(y, {x: values(1, 6, 6, 16)})
        assert plans_of(session)[-1].has_loops


# --- rows that are gathered


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 1)])
def test_rows_are_gathered_bit_for_bit(monkeypatch, shape, dtype):
    def build():
        table = tf.placeholder(tf.float32, [7, 5])
        ids = tf.placeholder(dtype, shape)
        position = tf.constant(values(*shape, 5, seed=1))
        return tf.gather(table, ids) + position, {"table": table, "ids": ids}

    ids = np.random.default_rng(0).integers(0, 7, shape)
    plain, compiled, groups = both(monkeypatch, build, {"table": values(7, 5), "ids": ids})
    assert groups == [["GatherV2", "AddV2"]]
    assert np.array_equal(plain, compiled)


NUMBERS = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.lists(NUMBERS, min_size=1, max_size=3))
def test_rows_gathered_by_constants_and_feeds(data, n_rows, n_columns, steps):
    """Matrices and numbers are constants, of one element too, or fed; what reads them may be so as well."""
    draw = data.draw

    def either(value):
        if draw(st.booleans()):
            return tf.constant(value)
        feeds[tensor := tf.placeholder(value.dtype, value.shape)] = value
        return tensor

    feeds = {}
    with tf.Graph().as_default() as graph:
        fetches = []
        for numbers in steps:
            table = either(values(n_rows, n_columns))
            rows = tf.gather(table, either(np.minimum(numbers, n_rows - 1).astype("i")))
            factor = either(values(*draw(st.sampled_from([(), (1,), (n_columns,), (len(numbers), 1)]))))
            fetches += [rows * factor, tf.reduce_max(factor - rows, -1)]
    found = []
    for mode in ("off", "eager"):
        with pytest.MonkeyPatch.context() as patch, tf.Session(graph=graph) as session:
            patch.setenv("FLOWRT_JIT", mode)
            found.append(session.run(fetches, feeds))
    for plain, compiled in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize(("matrix", "numbers"), [((4, 3), [1]), ((1, 1), [0]), ((1, 1), [0, 0])])
def test_a_constant_of_one_element_in_a_gather(monkeypatch, matrix, numbers):
    """The loop has a copy of a number; a matrix stays where it is."""

    def build():
        table, x = tf.placeholder(tf.float32, [4, 3]), tf.placeholder(tf.float32, [len(numbers), 1])
        rows = tf.gather(table if matrix == (4, 3) else tf.constant(values(*matrix)), numbers)
        return rows * x, {"table": table, "x": x}

    feeds = {"table": values(4, 3), "x": values(len(numbers), 1)}
    plain, compiled, _ = both(monkeypatch, build, feeds)
    np.testing.assert_array_equal(compiled, plain)


def test_a_group_computes_the_numbers_of_rows_it_gathers(monkeypatch):
    def build():
        x, table = tf.placeholder(tf.int32, [6, 3]), tf.constant(values(4, 3))
        return tf.gather(table, tf.reduce_max(tf.abs(x), -1)) * tf.cast(x, tf.float32), {"x": x}

    x = [[0, 1, 3], [2, 0, 0], [1, 1, 1], [-1, 0, 0], [3, 3, 3], [0, 2, -3]]
    plain, compiled, groups = both(monkeypatch, build, {"x": x})
    assert len(groups) == 1
    assert np.array_equal(plain, compiled)


@pytest.mark.parametrize("bad", [-1, 7, 2**31 - 1])
def test_a_row_that_is_not_there_is_the_kernels_error(eager, bad):
    table, ids = tf.placeholder(tf.float32, [7, 5]), tf.placeholder(tf.int32, [3])
    y = tf.gather(table, ids, name="rows") * 2.0
    with tf.Session() as session:
        good = {table: values(7, 5), ids: [6, 0, 3]}
        before = session.run(y, good)
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices") as error:
            session.run(y, {table: values(7, 5), ids: [6, bad, 3]})
        assert str(bad) in error.value.message
        assert np.array_equal(session.run(y, good), before)


def test_rows_of_a_variable_are_those_before_the_write(eager):
    """Though the variable is read where it lies."""
    table, ids, two = tf.Variable(values(7, 5)), tf.constant([1, 6]), tf.constant(2.0)
    with tf.control_dependencies([table.assign_add(tf.ones([7, 5]), read_value=False)]):
        rows = tf.gather(table, ids, name="rows") * two
    with tf.control_dependencies([rows]):
        after = table.assign(tf.zeros([7, 5]), read_value=False)
    with tf.Session() as session:
        session.run(table.initializer)
        for start in (values(7, 5), np.zeros((7, 5), np.float32)):
            found, _ = session.run([rows, after])
            assert np.array_equal(found, (start[[1, 6]] + 1) * 2)
        assert fused_of(session) == [["GatherV2", "Mul"]]


def test_rows_of_a_variable_without_a_value_are_refused(eager):
    table = tf.Variable(values(7, 5))
    rows = tf.gather(table, [1, 6]) * 2.0
    with tf.Session() as session, pytest.raises(tf.errors.FailedPreconditionError, match="no value yet"):
        session.run(rows)


@pytest.mark.parametrize(
    ("table", "ids", "options"),
    [
        ((4, 4), (4,), {"axis": 1}),
        ((3, 4, 5), (2,), {}),
        ((4, 4), (4, 1), {"batch_dims": 1}),
        ((7,), (3, 4), {}),
    ],
)
def test_other_gathers_keep_their_kernel(monkeypatch, table, ids, options):
    def build():
        x, numbers = tf.placeholder(tf.float32, table), tf.placeholder(tf.int32, ids)
        return tf.exp(tf.gather(x, numbers, **options)) + 1.0, {"x": x, "ids": numbers}

    feeds = {"x": values(*table), "ids": np.arange(np.prod(ids)).reshape(ids) % 3}
    plain, compiled, groups = both(monkeypatch, build, feeds)
    assert groups == [["Exp", "AddV2"]]
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)


def test_rows_of_a_table_that_does_not_lie_in_c_order(monkeypatch):
    def build():
        table, ids = tf.placeholder(tf.float32, [300, 80]), tf.placeholder(tf.int32, [9])
        return tf.gather(table, ids) - 1.0, {"table": table, "ids": ids}

    table = np.asfortranarray(values(300, 80))  # read where it is: more than 64 KiB
    plain, compiled, _ = both(monkeypatch, build, {"table": table, "ids": np.arange(9) * 30})
    assert np.array_equal(plain, compiled)


# --- behind a product


def test_bias_and_activation_are_in_place_behind_a_product(eager):
    x, w, b = (tf.placeholder(tf.float32, shape) for shape in ([6, 10], [10, 7], [7]))
    y = tf.matmul(tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b)), tf.transpose(w))
    with tf.Session() as session:
        session.run(y, {x: values(6, 10), w: values(10, 7), b: values(7)})
        (program,) = plans_of(session)[-1].programs
    product, group, *_ = [line for line in program.lines if line.node.op.name in ("MatMul", "_Fused")]
    assert group.operands[0] == group.results[0] == product.results[0]


def test_only_loops_that_run_are_compiled(eager):
    """A group in place of its input has one loop, not another one for results in memory of their own."""
    x, w = tf.placeholder(tf.float32, [6, 10]), tf.placeholder(tf.float32, [10, 10])
    known = []
    for factor in (1.4142, 1.7321):  # the second has the loops of the products already
        y = tf.matmul(tf.tanh(tf.matmul(x, w) * factor) + 0.5772, w)
        with tf.Session() as session:
            session.run(y, {x: values(6, 10), w: values(10, 10)})
            assert fused_of(session) == [["Mul", "Tanh", "AddV2"]]
        known.append(set(loop_layout._compiled))
    assert len(known[1] - known[0]) == 1


@pytest.mark.usefixtures("eager")
def test_sums_of_columns_of_what_is_in_registers_are_bound_once(monkeypatch):
    """Large feeds are read where they are, in a loop that threads share."""
    bound = []
    bind = FusedKernel.bind
    monkeypatch.setattr(FusedKernel, "bind", lambda kernel, *a: (bound.append(a), bind(kernel, *a))[1])
    rows = 700
    with tf.Graph().as_default(), tf.Session() as session:
        x, row = tf.placeholder(tf.float32, [rows, 256]), tf.placeholder(tf.float32, [256])
        scaled = x * tf.exp(row)
        summed = tf.reduce_sum(scaled, 0)
        largest = tf.reduce_max(tf.reshape(scaled - 1.0, [256, rows]), 1)
        for seed in range(3):
            given = {x: values(rows, 256, seed=seed), row: values(256, seed=seed)}
            found = session.run([summed, largest], given)
            expected = given[x] * np.exp(given[row])
            np.testing.assert_allclose(found[0], expected.sum(0), rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(found[1], (expected - 1).reshape(256, rows).max(1), rtol=1e-4)
        assert "Sum" in fused_of(session)[0]
    assert bound == []
