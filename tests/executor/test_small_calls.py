"""Small products and joins as compiled calls, compared with NumPy's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.device.llvm.call_sequence import in_sequence
from flowrt.executor.kernels import small_calls
from flowrt.executor.kernels.small_calls import MAX_SMALL, small_call
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.instruction import Call, Free, Instruction, free_late, python_calls
from flowrt.graph.op_def import op_def
from tests.executor.fused_sessions import execute, plans_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def node_of(build):
    with tf.Graph().as_default():
        return build().op.node


def op_node(name, *values):
    return node_of(lambda: op_def(name)(*values))


def matrix(rng, rows, columns, dtype, lies):
    """Of normal numbers: in C order, in Fortran's, every second element of a larger one, or a row again."""
    array = rng.normal(size=(2 * rows, 2 * columns)).astype(dtype)
    if lies == "apart":
        return array[::2, ::2]
    if lies == "again":
        return np.broadcast_to(array[0, :columns], (rows, columns))
    return np.array(array[:rows, :columns], order=lies)


sizes = st.integers(1, 9)
lies = st.sampled_from(["C", "F", "apart", "again"])
dtypes = st.sampled_from(["float32", "float64"])


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, lies, lies, st.booleans(), st.booleans(), dtypes)
def test_products(m, n, k, lies_a, lies_b, transpose_a, transpose_b, dtype):
    """A sum of k terms is off by at most k roundings of the sum of their sizes."""
    rng = np.random.default_rng(0)
    a = matrix(rng, *((k, m) if transpose_a else (m, k)), dtype, lies_a)
    b = matrix(rng, *((n, k) if transpose_b else (k, n)), dtype, lies_b)
    node = node_of(lambda: tf.matmul(a, b, transpose_a, transpose_b))
    out = np.full((m, n), np.nan, dtype)
    call = small_call(node, (a, b), (out,))
    if call is None:  # there are vectors in neither way
        assert not (lies_a == lies_b == "C" and not transpose_a)
        return
    execute(call)
    left, right = (a.T if transpose_a else a).astype(float), (b.T if transpose_b else b).astype(float)
    bound = (k + 1) * np.finfo(dtype).eps * (abs(left) @ abs(right))
    assert (abs(out - left @ right) <= bound).all()


@pytest.mark.parametrize("registers", [(16, 32), (8, 16), (4, 16)])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 5, 33), (13, 7, 40), (26, 3, 100), (12, 64, 32), (2, 300, 17), (5, 9, 3)]
)
def test_products_in_tiles(monkeypatch, m, k, n, registers):
    """Of any processor, with whole tiles and with what is left of rows and columns; strip by strip, too."""
    monkeypatch.setattr(small_calls, "vector_registers", lambda: registers)
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        a, b, out = rng.normal(size=(m, k)), rng.normal(size=(k, n)), np.full((m, n), np.nan)
        a, b, out = a.astype(dtype), b.astype(dtype), out.astype(dtype)
        call = small_call(node_of(lambda a=a, b=b: tf.matmul(a, b)), (a, b), (out,))
        for strip in reversed(range(call.end)):
            execute(call._replace(begin=strip, end=strip + 1))
        bound = (k + 1) * np.finfo(dtype).eps * (abs(a).astype(float) @ abs(b))
        assert (abs(out - a.astype(float) @ b) <= bound).all()
        again, before = np.empty_like(out), out.copy()
        execute(small_call(node_of(lambda a=a, b=b: tf.matmul(a, b)), (a[::-1], b), (again[::-1],)))
        np.testing.assert_array_equal(again, before)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
@pytest.mark.parametrize("ids", [np.int32(2), np.array([3, 0, 3]), np.array([[1], [2]], np.int32)])
def test_gathers(ids, dtype):
    params = np.arange(24).reshape(4, 3, 2).astype(dtype)
    node, ids = node_of(lambda: tf.gather(params, ids)), np.asarray(ids)
    out = np.empty((*ids.shape, 3, 2), dtype)
    execute(small_call(node, (params, ids, 0), (out,)))
    np.testing.assert_array_equal(out, params[ids])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    "ids", [np.array([[3], [0], [3]]), np.array([[[1]], [[2]]], np.int32)], ids=["3", "2"]
)
def test_scattered_rows(ids, dtype):
    """Of equal indices, the first is added first: the bits are NumPy's."""
    rows = np.random.default_rng(0).normal(size=(*ids.shape[:-1], 37, 5), scale=9).astype(dtype)
    node = node_of(lambda: tf.scatter_nd(ids, rows, [4, 37, 5]))
    out, expected = np.ones((4, 37, 5), dtype), np.zeros((4, 37, 5), dtype)
    call = small_call(node, (ids, rows, np.array([4, 37, 5])), (out,))
    np.add.at(expected, ids[..., 0], rows)
    for _ in range(2):
        execute(call)
        np.testing.assert_array_equal(out, expected)
    ids = ids.copy()
    ids.flat[1] = 4
    call = small_call(node, (ids, rows, np.array([4, 37, 5])), (out,))
    where = re.escape(f"indices{np.argwhere(ids == 4)[0].tolist()}: expected an index in [0, 4); got 4")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"^{where}$"):
        execute(call)


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_gather_refuses_what_is_no_row(wrong):
    params, ids, out = np.ones((4, 2), "f"), np.array([1, 1], np.int32), np.empty((2, 2), "f")
    call = small_call(node_of(lambda: tf.gather(params, ids)), (params, ids, 0), (out,))
    execute(call)
    ids[1] = wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"expected an index in \[0, 4\); got {wrong}$"):
        execute(call)
    ids[1] = 3
    execute(call)  # it is forgotten


@pytest.mark.parametrize("condition", [[True, False, True], False])
def test_choices_of_rows(condition):
    rng = np.random.default_rng(0)
    condition, (t, e) = np.array(condition), rng.integers(0, 9, (2, 3, 2, 2))
    out = np.empty_like(t)
    execute(small_call(op_node("Select", condition, t, e), (condition, t, e), (out,)))
    np.testing.assert_array_equal(out, np.where(condition.reshape(-1, 1, 1), t, e))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("axes", [[0], [0, 2], []], ids=str)
def test_sums_of_one_element_each(axes, keeps):
    value = np.random.default_rng(0).normal(size=(3, 1, 4, 1, 2)).transpose(1, 4, 3, 0, 2)
    node = node_of(lambda: tf.reduce_sum(value, axes, keepdims=keeps))
    expected = value.sum(tuple(axes), keepdims=keeps)
    out = np.full_like(expected, np.nan, order="C")
    execute(small_call(node, (value, np.array(axes)), (out,)))
    np.testing.assert_array_equal(out, expected)
    whole = node_of(lambda: tf.reduce_sum(value, [0, 1]))
    assert small_call(whole, (value, np.array([0, 1])), (np.empty((1, 3, 4)),)) is None


@pytest.mark.parametrize(("shape", "dtype"), [((5, 3), "float32"), ((2, 3, 4), "float64"), ((1, 1), "int32")])
def test_gradients_of_biases(shape, dtype):
    value = np.random.default_rng(0).normal(size=shape, scale=9).astype(dtype)
    out = np.full(shape[-1], 7, dtype)
    execute(small_call(op_node("BiasAddGrad", value), (value,), (out,)))
    tolerance = 0 if dtype == "int32" else len(value) * np.finfo(dtype).eps * np.abs(value).sum()
    np.testing.assert_allclose(out, value.reshape(-1, shape[-1]).sum(0), rtol=0, atol=tolerance)


def test_products_of_what_is_not_finite():
    a, b = np.array([[np.inf, 0, 1]], "f"), np.array([[1, 0], [np.nan, 1], [1, -np.inf]], "f")
    out = np.empty((1, 2), "f")
    execute(small_call(node_of(lambda: tf.matmul(a, b)), (a, b), (out,)))
    np.testing.assert_array_equal(out, [[np.nan, np.nan]])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_joins(axis, dtype):
    rng = np.random.default_rng(0)
    values = tuple([(rng.normal(size=(3, 3)) > 0).astype(dtype) for _ in range(3)])
    for build, join in ((tf.concat, np.concatenate), (tf.stack, np.stack)):
        expected = join(values, axis=axis)
        out = np.empty_like(expected)
        arguments = (values,) if join is np.stack else (values, axis)
        node = node_of(lambda build=build: build(list(map(tf.constant, values)), axis))
        execute(small_call(node, arguments, (out,)))
        np.testing.assert_array_equal(out, expected)


def test_what_there_is_no_call_for():
    half = np.ones((2, 2), np.float16)
    assert (
        small_call(node_of(lambda: tf.concat([half, half], 0)), ((half, half), 0), (np.ones((4, 2)),)) is None
    )
    large = np.ones((MAX_SMALL, 1), "f")
    out = np.empty((MAX_SMALL, 2), "f")
    assert small_call(node_of(lambda: tf.concat([large, large], 1)), ((large, large), 1), (out,)) is None
    a, later = np.ones((2, 2), "f"), Later((), False)
    assert small_call(node_of(lambda: tf.matmul(a, a)), (a, later), (np.ones((2, 2), "f"),)) is None


def test_calls_that_stand_side_by_side_are_one():
    a, out = np.ones((2, 2), "f"), [np.empty((2, 2), "f") for _ in range(3)]
    node = node_of(lambda: tf.matmul(a, a))
    sources = (a, *out[:2])
    one, two, three = [small_call(node, (a, b), (c,)) for b, c in zip(sources, out, strict=True)]
    seen = []
    instructions = [Instruction(node, action) for action in (one, two, Call(seen.append, (1,)), three)]
    calls, nodes = zip(*python_calls(instructions), strict=True)
    assert nodes == (None, node, node)
    assert calls[1:] == ((seen.append, (1,)), three.bound())
    for function, arguments in calls:
        function(*arguments)
    assert seen == [1]
    assert [array[0, 0] for array in out] == [2, 4, 8]
    out[2][:] = 0
    execute(in_sequence([in_sequence([one, two]), three]))
    assert out[2][0, 0] == 8


def test_registers_are_freed_behind_calls_that_are_one():
    a, out = np.ones((2, 2), "f"), [np.empty((2, 2), "f") for _ in range(2)]
    node = node_of(lambda: tf.matmul(a, a))
    one, two = [small_call(node, (a, b), (c,)) for b, c in zip((a, out[0]), out, strict=True)]
    free, other, read = Free([None], 0), Free([None], 0), Call(print)
    actions = (free, one, other, two, read, free, read)
    found = free_late([Instruction(node, action) for action in actions])
    assert [action for _, action in found] == [free, one, two, other, read, free, read]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_sum_alone_is_a_call_that_may_add_in_place(dtype):
    x, y = np.arange(6, dtype=dtype), np.full(6, 3, dtype)
    execute(small_call(op_node("AddV2", x, y), (x, y), (x,)))
    np.testing.assert_array_equal(x, np.arange(6) + 3)
    assert small_call(op_node("AddV2", x, y[:1]), (x, y[:1]), (x,)) is None


def test_parts_of_a_tensor_are_views(monkeypatch):
    """They cost nothing, and what reads them reads the tensor."""
    monkeypatch.setenv("FLOWRT_JIT", "off")
    x = tf.placeholder(tf.float32, [4, 6])
    y = x * 2.0
    a, b, c = tf.split(y, 3, 1)
    d, e = tf.split(y, [1, -1], 0)
    with tf.Session() as session:
        value = np.arange(24, dtype="f").reshape(4, 6)
        found = session.run([a * b + c, d - 1.0, tf.matmul(e, e, transpose_b=True), -b], {x: value})
        (plan,) = plans_of(session)
        names = [n.op.name for p in plan.programs for s in p.segments for n in s.nodes]
    assert not {"Split", "SplitV"} & set(names)
    twice = 2 * value
    parts = np.split(twice, 3, 1)
    expected = [parts[0] * parts[1] + parts[2], twice[:1] - 1, twice[1:] @ twice[1:].T, -parts[1]]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_reshape_that_is_no_view_is_a_copy_to_a_buffer():
    """Of a transpose. That of a large feed stays a view."""
    x = tf.placeholder(tf.float32, [32, 48, 16])
    turned = tf.reshape(tf.transpose(tf.tanh(x), [1, 0, 2]), [-1, 16])
    flat = tf.reshape(x, [-1])
    value = np.random.default_rng(0).normal(size=(32, 48, 16)).astype("f")
    with tf.Session() as session:
        found, total = session.run([turned + 0.0, tf.reduce_max(flat)], {x: value})
        (plan,) = plans_of(session)
        places = {line.node.name: line.results[0].slot for p in plan.programs for line in p.lines}
    np.testing.assert_allclose(found, np.tanh(value).transpose(1, 0, 2).reshape(-1, 16), rtol=1e-6)
    assert total == value.max()
    assert places[turned.op.name] is None
    assert places[flat.op.name] is not None


@pytest.mark.parametrize("shape", [(20, 3), (60,), (2, 2, 5, 3)], ids=str)
def test_a_reshape_of_a_transpose_is_one_call(shape):
    x, out = np.arange(60.0).reshape(3, 4, 5).transpose(1, 2, 0), np.empty(shape)
    node = op_node("Reshape", x, list(shape))
    execute(small_call(node, (x, shape), (out,)))
    np.testing.assert_array_equal(out, x.reshape(shape))


@pytest.mark.parametrize("shape", [[2, 12], [8, 3], [5, 5]], ids=str)
def test_a_reshape_to_a_buffer_of_another_shape_is_an_error(shape):
    """It is one into new memory, too, or in whoever reads it."""
    x, dims = tf.placeholder(tf.float32, [4, 6]), tf.placeholder(tf.int32, [2])
    y = tf.reshape(tf.transpose(tf.tanh(x)), dims)
    y.set_shape([3, 8])
    value = np.arange(24, dtype="f").reshape(4, 6)
    with tf.Session() as session:
        found = session.run(y + 0.0, {x: value, dims: [3, -1]})
        np.testing.assert_allclose(found, np.tanh(value).T.reshape(3, 8), rtol=1e-6)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected .* got \["):
            session.run(y + 0.0, {x: value, dims: shape})
