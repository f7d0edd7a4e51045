"""Loops over small tensors whose iterations are machine code give what the same calls give one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.lists import compiled_body, list_rows
from flowrt.executor.lists.list_rows import FIRST_ROWS
from flowrt.graph.ops.lists import stacked_lists
from flowrt.graph.ops.lists import tensor_lists as lists
from tests.executor.fused_sessions import plans_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")


def run(build, feeds, is_whole=True, steps=2):
    """The fetches of the last of some steps. ``build()`` returns fetches and placeholders by name."""
    graph = tf.Graph()
    with graph.as_default():
        fetches, names = build()
    with tf.Session(graph=graph) as session:
        for _ in range(steps):
            found = session.run(fetches, {names[name]: value for name, value in feeds.items()})
        assert all(is_compiled == is_whole for is_compiled in loops_of(session))
        return found


def loops_of(session):
    """Of each loop of a session whether one call makes its iterations."""
    segments = [s for plan in plans_of(session) for program in plan.programs for s in program.segments]
    loops = [s.control for s in segments if s.control is not None]
    assert loops
    return [len(loop.body) == 1 and len(loop.body[0].instructions) == 1 for loop in loops]


def both(monkeypatch, build, feeds):
    """As machine code, and by calls of its loops."""
    whole = run(build, feeds)
    monkeypatch.setattr(compiled_body, "_may_be_step", lambda *_: False)
    return whole, run(build, feeds, is_whole=False)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def recurrence(shape=(5,), dtype=tf.float32):
    x, steps = tf.placeholder(dtype, shape), tf.placeholder(tf.int32, [])

    def body(i, a, total):
        b = tf.tanh(0.9 * a + x)
        square = b * b
        return i + 1, b - 0.1 * a, total + (tf.reduce_sum(square) if shape else square)

    start = [tf.constant(0), tf.zeros(shape, dtype), tf.zeros([], dtype)]
    _, a, total = tf.while_loop(lambda i, *_: i < steps, body, start)
    return [a, total, tf.gradients(total, x)[0]], {"x": x, "steps": steps}


@pytest.mark.parametrize("steps", [0, 1, FIRST_ROWS, FIRST_ROWS + 1, 5 * FIRST_ROWS])
def test_what_a_loop_keeps_for_its_gradient(monkeypatch, steps):
    x = np.linspace(-1, 1, 5).astype("f")
    assert_equal(*both(monkeypatch, recurrence, {"x": x, "steps": steps}))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 1, 3)])
def test_shapes(monkeypatch, shape):
    x = np.random.default_rng(0).normal(size=shape)
    feeds = {"x": x, "steps": 7}
    assert_equal(*both(monkeypatch, lambda: recurrence(shape, tf.float64), feeds))


def test_the_gradient_is_that_of_the_kernels(monkeypatch):
    feeds = {"x": np.linspace(-1, 1, 5), "steps": 20}
    compiled = run(lambda: recurrence(dtype=tf.float64), feeds)
    monkeypatch.setenv("FLOWRT_JIT", "off")
    plain = run(lambda: recurrence(dtype=tf.float64), feeds, is_whole=False)
    for one, other in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def powers(derivatives):
    """A recurrence in which every derivative has another loop, and the derivatives of its end."""

    def build():
        x, steps = tf.placeholder(tf.float64, [5]), tf.placeholder(tf.int32, [])
        _, a = tf.while_loop(lambda i, a: i < steps, lambda i, a: (i + 1, tf.sin(a) * 1.1 + x), [0, x])
        made = [a]
        for _ in range(derivatives):
            made.append(tf.gradients(made[-1], x)[0])
        return made, {"x": x, "steps": steps}

    return build


@pytest.mark.parametrize("steps", [0, 1, FIRST_ROWS + 1])
@pytest.mark.parametrize("derivatives", [2, 3])
def test_gradients_of_gradients(monkeypatch, derivatives, steps):
    feeds = {"x": np.linspace(-1, 1, 5) / 9, "steps": steps}
    assert_equal(*both(monkeypatch, powers(derivatives), feeds))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 9))
def test_variables_change_at_once(order, sources, steps):
    """Rotations, copies and sums of variables: each iteration reads what the one before has left."""

    def build():
        limit = tf.placeholder(tf.int32, [])
        start = [tf.constant(np.arange(3) + 10 * k) for k in range(4)]

        def body(i, *values):
            return i + 1, *[values[k] + (values[s] if s else 0) for k, s in zip(order, sources, strict=True)]

        return tf.while_loop(lambda i, *_: i < limit, body, [tf.constant(0), *start]), {"steps": limit}

    values = [np.arange(3) + 10 * k for k in range(4)]
    for _ in range(steps):
        values = [values[k] + (values[s] if s else 0) for k, s in zip(order, sources, strict=True)]
    assert_equal(run(build, {"steps": steps}, steps=1), [steps, *values])


def network():
    """A recurrent network on small matrices, with the gradients of its weights."""
    x, steps = tf.placeholder(tf.float32, [3, 4]), tf.placeholder(tf.int32, [])
    weights = tf.constant(np.random.default_rng(1).normal(size=(10, 12)).astype("f"))
    bias = tf.constant(np.linspace(-1, 1, 12).astype("f"))

    def body(i, h, total):
        gate, add = tf.split(tf.matmul(tf.concat([x, h], 1), weights) + bias, 2, 1)
        h = tf.sigmoid(gate) * h + tf.tanh(add)
        return i + 1, h, total + tf.reduce_sum(tf.stack([h, -2.0 * h]))

    start = [tf.constant(0), tf.zeros([3, 6]), tf.constant(0.0)]
    _, h, total = tf.while_loop(lambda i, *_: i < steps, body, start)
    return [h, total, *tf.gradients(total, [weights, bias, x])], {"x": x, "steps": steps}


@pytest.mark.parametrize("steps", [0, 9, 3 * FIRST_ROWS])
def test_products_and_joins(monkeypatch, steps):
    x = np.random.default_rng(2).normal(size=(3, 4)).astype("f")
    assert_equal(*both(monkeypatch, network, {"x": x, "steps": steps}))


def taken(n_elements):
    """What remains of a list of pairs, of which one is not set, and the weighted sum of what a loop took."""
    limit = tf.placeholder(tf.int32, [])
    handle = lists.tensor_list_reserve([2], n_elements, element_dtype=tf.float32)
    for i in range(n_elements):
        if i != 1:
            handle = lists.tensor_list_set_item(handle, i, tf.constant([i, -1.0]))

    def body(i, handle, total):
        handle, pair = lists.tensor_list_pop_back(handle, [2], element_dtype=tf.float32)
        return i + 1, handle, 2.0 * total + pair

    start = [tf.constant(0), handle, tf.zeros([2])]
    _, handle, total = tf.while_loop(lambda i, *_: i < limit, body, start)
    left = stacked_lists.tensor_list_stack(handle, [2], element_dtype=tf.float32)
    return [left, total], {"limit": limit}


@pytest.mark.parametrize("limit", [0, 3, 5])
def test_elements_that_are_not_set(monkeypatch, limit):
    assert_equal(*both(monkeypatch, lambda: taken(5), {"limit": limit}))


def test_an_empty_list_has_nothing_to_take():
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a list with elements"):
        run(lambda: taken(3), {"limit": 4})


def test_a_loop_in_a_loop(monkeypatch):
    def build():
        x = tf.placeholder(tf.float32, [6])

        def inner(j, a):
            return j + 1, tf.sin(a) + x

        def outer(i, a):
            return i + 1, tf.while_loop(lambda j, _: j < 3, inner, [tf.constant(0), a])[1]

        last = tf.while_loop(lambda i, _: i < 4, outer, [tf.constant(0), tf.zeros([6])])[1]
        return [last, tf.gradients(last, x)[0]], {"x": x}

    assert_equal(*both(monkeypatch, build, {"x": np.linspace(-2, 2, 6).astype("f")}))


@pytest.mark.parametrize("turned", [tf.transpose, lambda b: tf.reverse(b, [0])], ids=["transpose", "reverse"])
def test_a_carried_value_in_another_order(monkeypatch, turned):
    """Its next value is a view of what it replaces."""

    def build():
        x = tf.placeholder(tf.float32, [4, 4])
        body = lambda i, a, b: (i + 1, a * 0.5, turned(b))  # noqa: E731
        loop = tf.while_loop(lambda i, *_: i < 3, body, [0, x, x * 2.0])
        return [*loop[1:]], {"x": x}

    value = np.arange(16, dtype="f").reshape(4, 4)
    found, expected = both(monkeypatch, build, {"x": value})
    assert_equal(found, expected)
    np.testing.assert_array_equal(found[1], 2 * (value.T if turned is tf.transpose else value[::-1]))


def refuse(*_):
    raise compiled_body.NotMachineCode


@pytest.mark.parametrize("size", [5, 20_000])  # less than 64 KiB, and more, which is read where it is
def test_a_body_that_turns_out_to_be_more_runs_one_by_one(monkeypatch, size):
    """With the same rows of lists, and its large operands copied."""
    feeds = {"x": np.linspace(-1, 1, size).astype("f"), "steps": 70}
    build = lambda: recurrence((size,))  # noqa: E731
    expected = run(build, feeds)
    monkeypatch.setattr(compiled_body.Lowering, "block", refuse)
    assert_equal(run(build, feeds, is_whole=False), expected)


def test_steps_that_fail_link_nothing_anew():
    """Their instances are thrown away; the machine code is not."""
    graph = tf.Graph()
    with graph.as_default():
        (_, total, gradient), names = recurrence()
        checked = tf.check_numerics(total, "total")
    with tf.Session(graph=graph) as session:
        linked = []
        for _ in range(6):
            feeds = {names["x"]: np.full(5, np.nan, "f"), names["steps"]: 3}
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run([checked, gradient], feeds)
            linked.append(next(host_jit._numbers))
    assert np.diff(linked[1:]).tolist() == [1] * 4


def test_rows_of_several_pieces(monkeypatch):
    """Joined, or, where they are many bytes, left where they are."""
    feeds = {"x": np.linspace(-1, 1, 5).astype("f"), "steps": 5 * FIRST_ROWS}
    expected = run(recurrence, feeds, steps=1)
    monkeypatch.setattr(list_rows, "MAX_PIECE", 100)
    assert_equal(run(recurrence, feeds, steps=1), expected)
