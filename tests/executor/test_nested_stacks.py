"""Values that nests of loops save for their gradients, and lists of lists that a script made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.bind import bind_control
from flowrt.executor.lists import compiled_body, list_rows
from flowrt.executor.lists.list_rows import FIRST_ROWS
from flowrt.graph.ops.lists import stacked_lists
from flowrt.graph.ops.lists import tensor_lists as lists
from tests.executor.random_nests import RandomNest
from tests.executor.test_nests import assert_same, controls_in, counted, pausing_after, run

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def are_whole(segments):
    """Whether of each outermost loop one call makes the iterations: nothing is in it."""
    return [list(controls_in(s.control.body)) == [] for s in segments if s.control is not None]


def compiling_inner_loops_only(patch):
    """Loops with loops in them are no machine code."""

    def may_be(loop, judged=compiled_body.loop_may_be_compiled):
        return judged(loop) and all(node.op.name != "_Loop" for node in loop.attrs["body"])

    for module in (compiled_body, bind_control):
        patch.setattr(module, "loop_may_be_compiled", may_be)


def check(build, rtol=1e-12):
    """The gradient is the same, bit for bit, by calls of the inner loops from Python, and wherever machine
    code pauses or has to make room; and about what the operations' kernels give.
    """
    found, segments = run(build)
    assert are_whole(segments)
    assert all(are_whole(segments))
    with pytest.MonkeyPatch.context() as patch:
        compiling_inner_loops_only(patch)
        by_calls, segments = run(build)
        assert not all(are_whole(segments))
        assert_same(found, by_calls)
    with pytest.MonkeyPatch.context() as patch:
        pausing_after(patch, 1)
        patch.setattr(list_rows, "FIRST_ROWS", 1)
        patch.setattr(list_rows, "MAX_PIECE", 64)
        assert_same(run(build)[0], found)
    for one, other in zip(found, run(build, "off")[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol)


def gradient_of(nest, shape, dtype=tf.float64):
    """``nest(x)`` and its gradient."""

    def build():
        x = tf.placeholder(dtype, shape)
        (last,) = nest(x)
        feed = np.linspace(0.3, 0.9, int(np.prod(shape))).reshape(shape).astype(dtype.as_numpy_dtype)
        return [last, tf.gradients(last, x)[0]], {x: feed}

    return build


def start(x):
    return tf.ones(x.shape, x.dtype)


SHAPES = pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)


# --- gradients


@SHAPES
def test_inner_loops_of_other_lengths(shape):
    """From none on."""

    def nest(x):
        inner = lambda j, a: [tf.sin(a) * x]  # noqa: E731
        return counted(5, lambda i, a: counted(i * i - i, inner, a + 0.1 * x), start(x))

    check(gradient_of(nest, shape))


@pytest.mark.parametrize("limits", list(itertools.product([0, 1, 4], repeat=2)), ids=str)
def test_loops_without_iterations(limits):
    """Known when they run only."""
    outer, inner = limits

    def build():
        n, m, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, []), tf.placeholder(tf.float64, [3])
        step = lambda i, a: counted(m, lambda j, a: [tf.sin(a) * x], a + x)  # noqa: E731
        (last,) = counted(n, step, start(x))
        return [last, tf.gradients(last, x)[0]], {n: outer, m: inner, x: [0.3, 0.5, 0.7]}

    check(build)


def test_the_number_of_inner_iterations_depends_on_the_data():
    def nest(x):
        inner = lambda a: tf.while_loop(lambda a: tf.reduce_sum(a) < 4.0, lambda a: [a * (1.0 + x)], [a])  # noqa: E731
        return counted(6, lambda i, a: [inner(a) * 0.4], start(x))

    check(gradient_of(nest, (3,)))


@SHAPES
def test_two_loops_side_by_side(shape):
    def nest(x):
        def step(i, a):
            (a,) = counted(i, lambda j, a: [tf.sin(a) * x], a)
            (a,) = counted(3 - i, lambda j, a: [tf.cos(a) + x * a], a * a)
            return [a]

        return counted(5, step, start(x))

    check(gradient_of(nest, shape))


@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_three_deep(shape):
    def nest(x):
        innermost = lambda k, a: [tf.sin(a) * 0.9 + x]  # noqa: E731
        inner = lambda j, a: counted(j, innermost, a * 1.1)  # noqa: E731
        return counted(5, lambda i, a: counted(i, inner, a + 0.1), start(x))

    check(gradient_of(nest, shape))


def test_more_rows_than_there_are_at_first():
    def nest(x):
        inner = lambda j, a: [tf.sin(a) * x]  # noqa: E731
        return counted(FIRST_ROWS + 3, lambda i, a: counted(i, inner, a + x), start(x))

    check(gradient_of(nest, (3,)))


def test_rows_that_do_not_lie_side_by_side():
    """What is kept is a transposed matrix."""

    def nest(x):
        inner = lambda j, a: [tf.sin(tf.matmul(a, x, transpose_a=True)) * tf.transpose(a)]  # noqa: E731
        return counted(4, lambda i, a: counted(i, inner, a + x), start(x))

    check(gradient_of(nest, (3, 3)))


def test_a_feed_that_lies_somewhere_else_in_each_step(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, [100, 100])
        (last,) = counted(3, lambda i, a: counted(i, lambda j, a: [a * x], a + x), start(x))
        gradient = tf.gradients(last, x)[0]
        for value in (2.0, 3.0, 5.0):
            found = session.run(gradient, {x: np.full((100, 100), value)})
            np.testing.assert_array_equal(found, 6.0 * value**2 + 8.0 * value**3)  # of (2 x^2 + 2 x) x^2


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (3,), (5, 1), (2, 3)], ids=str)
def test_a_nest_in_python_with_a_gradient_that_is_machine_code(shape, count):
    """It makes plain lists, whose elements are put together: row by row, also where each list has one."""

    def nest(x):
        def inner(j, a):
            one = tf.py_func(lambda _: 1.0, [j], tf.float64)
            one.set_shape([])
            return j + 1, tf.sin(a) * x * one

        def outer(i, a):
            return i + 1, tf.while_loop(lambda j, _: j < count, inner, [0, a + 0.1 * x])[1]

        return tf.while_loop(lambda i, _: i < 3, outer, [0, start(x)])[1:]

    found, segments = run(gradient_of(nest, shape))
    assert any(are_whole(segments))
    for one, other in zip(found, run(gradient_of(nest, shape), "off")[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_second_derivatives():
    def build():
        x = tf.placeholder(tf.float64, [3])
        inner = lambda j, a: [tf.sin(a) * x]  # noqa: E731
        (last,) = counted(4, lambda i, a: counted(i, inner, a + 0.1 * x), start(x))
        (first,) = tf.gradients(last, x)
        return [first, tf.gradients(first, x)[0]], {x: [0.3, 0.5, 0.7]}

    found, segments = run(build)
    assert all(are_whole(segments))
    for one, other in zip(found, run(build, "off")[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_two_gradients_read_the_same_values():
    """The second one finds the lists of the first."""

    def build():
        x = tf.placeholder(tf.float64, [3])
        inner = lambda j, a: [tf.sin(a) * x]  # noqa: E731
        (last,) = counted(4, lambda i, a: counted(i, inner, a + 0.1 * x), start(x))
        one, count = tf.gradients(last, x)[0], len(last.op.outputs)
        other = tf.gradients(3.0 * last, x)[0]
        assert len(last.op.outputs) == count
        return [3.0 * one, other], {x: [0.3, 0.5, 0.7]}

    (one, other), segments = run(build)
    assert all(are_whole(segments))
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_gradient_in_the_body_takes_its_own_values_only():
    """The gradient of steps along a gradient: each inner loop has a list of its own, which is kept."""

    def build():
        x = tf.placeholder(tf.float64, [3])

        def step(i, a):
            (b,) = counted(3, lambda j, b: [tf.sin(b) * x], a)
            return [a - 0.1 * tf.gradients(b, a)[0] + 0.2 * b]

        (last,) = counted(4, step, start(x))
        return [last, tf.gradients(last, x)[0]], {x: feed}

    feed, tiny = np.array([0.3, 0.5, 0.8]), 1e-6
    (_, found), _ = run(build)
    feed = feed + tiny
    (above, _), _ = run(build)
    feed = feed - 2 * tiny
    (below, _), _ = run(build)
    np.testing.assert_allclose(found, (above - below) / (2 * tiny), rtol=1e-7)


def operations_of(loop):
    """The types of the operations in the body of ``loop``, and in those of loops in it."""
    for node in loop.node.attrs["body"] if isinstance(loop, tf.Operation) else loop.attrs["body"]:
        yield node
        if node.op.name == "While":
            yield from operations_of(node)


def test_values_of_inner_loops_are_no_lists_of_lists():
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [3])
        inner = lambda j, a: counted(j, lambda k, a: [tf.sin(a) * x], a)  # noqa: E731
        (last,) = counted(5, lambda i, a: counted(i, inner, a + 0.1), start(x))
        tf.gradients(last, x)
        stacked = [n for n in operations_of(last.op) if n.op.name == "TensorListPushBack"]
        assert stacked
        assert all(node.attrs["element_dtype"] is not tf.variant for node in stacked)


@settings(max_examples=settings.default.max_examples // 12)
@given(st.integers(0, 10**9), st.booleans())
def test_gradients_of_random_nests(seed, has_branches):
    nest = RandomNest(seed, has_branches)
    found, _ = run(nest.build_gradient)
    with pytest.MonkeyPatch.context() as patch:
        compiling_inner_loops_only(patch)
        assert_same(run(nest.build_gradient)[0], found)
    with pytest.MonkeyPatch.context() as patch:
        pausing_after(patch, 1)
        patch.setattr(list_rows, "FIRST_ROWS", 1)
        assert_same(run(nest.build_gradient)[0], found)


def test_most_gradients_of_random_nests_are_machine_code():
    """So that the test above is one of that."""
    whole = [all(are_whole(run(RandomNest(seed, False).build_gradient)[1])) for seed in range(5)]
    assert sum(whole) >= 4


# --- lists of an outer loop


def test_inner_loops_write_a_list_of_the_outer_loop():
    """The outer loop opens it, and the nest is machine code."""

    def build():
        x = tf.placeholder(tf.float64, [4, 3])

        def step(i, array):
            write = lambda j, array: [array.write(2 * i + j, x[j] * tf.cast(i, tf.float64))]  # noqa: E731
            return counted(2, write, array)

        (array,) = counted(3, step, tf.TensorArray(tf.float64, 6))
        return [array.stack()], {x: feed}

    feed = np.arange(12.0).reshape(4, 3)
    (found,), segments = run(build)
    assert all(are_whole(segments))
    np.testing.assert_array_equal(found, [feed[j] * i for i in range(3) for j in range(2)])


# --- memory


def test_rows_are_free_behind_a_step(monkeypatch):
    """However many there were."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        limit, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float64, [500])
        step = lambda i, a: counted(i, lambda j, a: [tf.sin(a) * x], a + x)  # noqa: E731
        (last,) = counted(limit, step, start(x))
        gradient = tf.gradients(last, x)
        in_use = []
        for n in (30, 1, 30, 30, 2):
            session.run(gradient, {limit: n, x: np.ones(500)})
            in_use.append(sum(device.pool.stats().bytes_in_use for device in session.devices))
            most = max(device.pool.stats().peak_bytes_in_use for device in session.devices)
    assert len(set(in_use)) == 1
    assert most > in_use[0] + 30 * 29 // 2 * 4000


# --- lists that a script made


def list_of(values, dtype, shape):
    handle = lists.tensor_list_reserve(shape, 0, element_dtype=dtype)
    for value in values:
        handle = lists.tensor_list_push_back(handle, value, element_dtype=dtype)
    return handle


def nested_list(value):
    """A list of lists of vectors, or of lists of lists."""
    if isinstance(value, np.ndarray):
        return tf.constant(value)
    if all(isinstance(v, np.ndarray) for v in value):
        return list_of([tf.constant(v) for v in value], tf.float64, [2])
    return list_of([nested_list(v) for v in value], tf.variant, [2])


def taken_sum(handle, limits, a, dtype=tf.variant):
    """``a`` after so many of the last lists were taken, and from each so many of its last elements; and the
    list that is left. The number of elements is one for each depth.
    """
    limit, *inner = limits

    def step(i, handle, a):
        kind = dtype if inner else tf.float64
        handle, last = lists.tensor_list_pop_back(handle, [2], element_dtype=kind)
        return [handle, taken_sum(last, inner, a * 1.5)[1] if inner else a * 0.5 + last]

    return counted(limit, step, handle, a)


PAIRS = [[np.array([float(i + j), j * 0.5]) for j in range(n)] for i, n in enumerate((2, 0, 3, 4))]
DEEP = [PAIRS, PAIRS[2:], [PAIRS[3], PAIRS[0], PAIRS[2]]]


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (PAIRS, (0, 0)),
        (PAIRS, (1, 4)),
        (PAIRS, (2, 1)),
        (PAIRS, (2, 3)),
        (PAIRS, (4, 0)),
        (DEEP, (3, 2, 2)),
        (DEEP, (2, 1, 2)),
        (DEEP, (3, 1, 0)),
    ],
)
def test_elements_that_nobody_takes(value, limits):
    """They are left out, and what is left of the outer list is there behind the nest."""

    def build():
        given = [tf.placeholder_with_default(limit, []) for limit in limits]
        left, total = taken_sum(nested_list(value), given, tf.zeros([2], tf.float64))
        fetches = [total, lists.tensor_list_length(left)]
        if limits[0] < len(value) and len(limits) == 2:
            last = lists.tensor_list_pop_back(left, [2], element_dtype=tf.variant)[1]
            fetches.append(stacked_lists.tensor_list_stack(last, [2], element_dtype=tf.float64))
        return fetches, {}

    assert_same(run(build)[0], run(build, "off")[0])


@pytest.mark.parametrize("limits", [(5, 0), (2, 4), (3, 1)])
def test_an_empty_list_has_nothing_to_take(limits):
    build = lambda: (taken_sum(nested_list(PAIRS), limits, tf.zeros([2], tf.float64))[1:], {})  # noqa: E731
    for mode in ("off", "eager"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected a list with elements"):
            run(build, mode)


@pytest.mark.parametrize("mode", ["off", "eager"])
def test_a_list_of_something_else(mode):
    """Of lists of numbers of another type."""

    def build():
        handle = list_of([list_of([tf.constant([1, 2])], tf.int32, [2])], tf.variant, [2])
        return taken_sum(handle, (1, 1), tf.zeros([2], tf.float64))[1:], {}

    with pytest.raises(tf.errors.DTypeError, match="expected a list of float64; got one of int32"):
        run(build, mode)


def pushed_lists(handle, rounds):
    """``handle`` with as many lists more, of 0, 1, ... numbers."""

    def step(i, handle):
        empty = lists.empty_tensor_list([2], -1, element_dtype=tf.float64)

        def push(j, inner):
            pair = tf.cast(tf.stack([i, j]), tf.float64)
            return [lists.tensor_list_push_back(inner, pair, element_dtype=tf.float64, _stack=True)]

        (inner,) = counted(i, push, empty)
        return [lists.tensor_list_push_back(handle, inner, element_dtype=tf.variant, _stack=True)]

    return counted(rounds, step, handle)[0]


@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("before", [[], PAIRS[2:]])
def test_what_is_pushed_is_there_behind_the_nest(before, rounds):
    def build():
        first = list_of([nested_list(v) for v in before], tf.variant, [2])
        handle = pushed_lists(first, tf.placeholder_with_default(rounds, []))
        fetches = [lists.tensor_list_length(handle)]
        for number in range(len(before) + rounds):
            one = lists.tensor_list_get_item(handle, number, [2], element_dtype=tf.variant)
            fetches.append(stacked_lists.tensor_list_stack(one, [2], element_dtype=tf.float64))
        return fetches, {}

    assert_same(run(build)[0], run(build, "off")[0])
