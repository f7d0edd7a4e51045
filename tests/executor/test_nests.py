"""Nests of loops and branches: one function of machine code, or one program of calls, wherever it pauses; and
they give what the operations' kernels give.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.lists import compiled_body
from flowrt.executor.program import time_slice
from flowrt.executor.program.time_slice import TimeSlice
from tests.executor.fused_sessions import ends, plans_of
from tests.executor.random_nests import RandomNest

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

STEPS = 3
"""Of a session: what is compiled beside the first two is in the last at the latest, or not yet."""


def run(build, mode="eager"):
    """The fetches of the last step, and the session's segments. ``build()`` gives fetches and feeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default(), tf.Session() as session:
            fetches, feeds = build()
            for _ in range(STEPS):
                found = session.run(fetches, feeds)
            return found, [s for plan in plans_of(session) for p in plan.programs for s in p.segments]


def controls_in(segments):
    """All loops and branches, in others too."""
    for control in [segment.control for segment in segments if segment.control is not None]:
        yield control
        for block in [control.body] if hasattr(control, "body") else control.blocks:
            yield from controls_in(block)


def assert_one_call(segments):
    """That there is one loop, of which one call of machine code makes the iterations."""
    (loop,) = controls_in(segments)
    (((function, _),),) = [segment.calls for segment in loop.body]
    assert isinstance(function, TimeSlice)


def pausing_after(patch, iterations):
    """Have machine code make so many iterations between two pauses."""
    patch.setattr(compiled_body, "FIRST_NS", 1e-9 if iterations == 1 else 1e5)
    patch.setattr(time_slice, "MAX_ITERATIONS", iterations)
    patch.setattr(time_slice, "LONG_S", 1e9)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def check(build, is_one_call=True):
    """The same, bit for bit, with and without machine code, and wherever that pauses; what it is."""
    plain, _ = run(build, "off")
    compiled, segments = run(build)
    assert_same(compiled, plain)
    with pytest.MonkeyPatch.context() as patch:
        pausing_after(patch, 1)
        assert_same(run(build)[0], plain)
    if is_one_call:
        assert_one_call(segments)
    return plain


def counted(limit, step, *first):
    """``first`` after ``step(i, *values)`` for each i below ``limit``."""
    last = tf.while_loop(lambda i, *_: i < limit, lambda i, *v: (i + 1, *step(i, *v)), [0, *first])
    return last[1:]


def start(shape, dtype=tf.float32):
    return tf.ones(shape, dtype)


SHAPES = pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)


@pytest.mark.parametrize("mode", ["eager", "background"])
@pytest.mark.parametrize(
    "rows", [3, 300]
)  # of 64 floats: less than 64 KiB, and more, which is read where it is
@pytest.mark.parametrize("function", [tf.sin, tf.cos])
def test_what_machine_code_cannot_do_is_done_anew_on_the_values_of_the_step(function, rows, mode):
    """An angle beyond 2**48, in what the loop begins with and in what it only reads, row by row too."""

    def build():
        x, y = tf.placeholder(tf.float32, [rows, 64]), tf.placeholder(tf.float32, [rows, 64])
        whole = lambda i, z: (i + 1, function(z) + y)  # noqa: E731
        by_rows = lambda i, z: (i + 1, z + function(x[i] * y[i]) + y[i])  # noqa: E731
        fetches = [
            tf.while_loop(lambda i, z: i < 2, whole, (0, x))[1],
            tf.while_loop(lambda i, z: i < rows, by_rows, (0, tf.zeros([64])))[1],
        ]
        return fetches, {x: angles, y: angles[::-1]}

    angles = values(rows)
    found, _ = run(build, mode)
    expected, _ = run(build, "off")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def values(rows):
    angles = np.random.default_rng(0).normal(size=(rows, 64)).astype(np.float32)
    angles[0, 0] = angles[-1, 5] = 1e15
    return angles


# --- what becomes one call


@SHAPES
def test_a_loop_in_a_loop_in_a_loop(shape):
    def build():
        innermost = lambda i, j: lambda k, a: [tf.minimum(a + 1.0, 50.0) - tf.cast(k * j, tf.float32)]  # noqa: E731
        inner = lambda i: lambda j, a: counted(i, innermost(i, j), a)  # noqa: E731
        return counted(4, lambda i, a: counted(3, inner(i), a + 0.5), start(shape)), {}

    check(build)


@SHAPES
def test_branches_in_a_loop(shape):
    def step(i, a, b):
        total = tf.reduce_sum(a) if shape else a
        a, b = tf.cond(total > 4.0, lambda: (b, a - 2.0), lambda: (a + 1.0, tf.identity(a)))
        return tf.switch_case(i - 2, [lambda: a, lambda: -a, lambda: b]), b

    check(lambda: (counted(9, step, start(shape), start(shape) * 2.0), {}))


@SHAPES
def test_a_loop_in_a_branch_in_a_loop(shape):
    """A branch that is not taken may have a loop that does not end."""

    def forever(a):
        return tf.while_loop(lambda a: tf.reduce_sum(a) > -1e9, lambda a: [a * 1.0], [a])

    def step(i, a):
        odd = tf.equal(i % 2 if not shape else i - 2 * tf.cast(i > 1, tf.int32), 1)
        taken = lambda: counted(i + 1, lambda j, a: [a + tf.cast(j, tf.float32)], a)[0]  # noqa: E731
        return [tf.cond(i > 100, lambda: forever(a), lambda: tf.cond(odd, taken, lambda: a - 1.0))]

    check(lambda: (counted(7, step, start(shape)), {}), is_one_call=bool(shape))


def test_a_loop_over_scalars_in_one_over_tensors():
    def step(i, a, x):
        (x,) = counted(i, lambda j, x: [x * 0.5 + 1.0], x)
        return a + x, x

    def build():
        x = tf.constant(8.0)
        return counted(6, step, start([4]), x), {}

    check(build)


def test_branches_outside_of_loops_are_a_call():
    def build():
        x = start([5])
        for _ in range(4):
            x = tf.tanh(x) + x
        branch = lambda k: lambda: tf.exp(x * k) - tf.reduce_sum(x)  # noqa: E731
        x = tf.switch_case(tf.cast(x[0], tf.int32), [branch(k) for k in (0.5, 2.0, 1.0)])
        return [tf.tanh(x) * 2.0], {}

    plain, _ = run(build, "off")
    (compiled,), segments = run(build)
    assert not list(controls_in(segments))
    np.testing.assert_array_max_ulp(plain[0], compiled, 4)


# --- what loops are made of


@pytest.mark.parametrize("limits", [(0, 3), (3, 0), (0, 0), (1, 1)])
@SHAPES
def test_loops_without_iterations(shape, limits):

    def build():
        outer, inner = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])
        last = counted(outer, lambda i, a: counted(inner, lambda j, a: [a + 1.0], a), start(shape))
        return last, {outer: limits[0], inner: limits[1]}

    (found,) = check(build)
    np.testing.assert_array_equal(found, np.full(shape, 1 + limits[0] * limits[1]))


@pytest.mark.parametrize("first", [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_a_predicate_of_what_is_no_number_is_false(shape, first):
    def total(a):
        return tf.reduce_sum(a) if shape else a

    def build():
        inner = lambda a: tf.while_loop(lambda a: total(a) < 5.0, lambda a: [a + 1.0], [a])  # noqa: E731
        return counted(3, lambda i, a: [inner(a) - 2.0], tf.fill(shape, np.float32(first))), {}

    check(lambda: build() if first != -np.inf else (counted(3, lambda i, a: [a - a], start(shape)), {}))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@SHAPES
def test_integers_wrap(shape, dtype):
    inner = lambda j, a: [a * 31 + 7]  # noqa: E731
    check(lambda: (counted(5, lambda i, a: counted(4, inner, a), start(shape, dtype)), {}))


@SHAPES
def test_a_greatest_number_of_iterations(shape):
    def build():
        always = lambda a: tf.constant(True)  # noqa: E731
        inner = lambda a: tf.while_loop(always, lambda a: [a + 1.0], [a], maximum_iterations=3)  # noqa: E731
        last = tf.while_loop(always, lambda a: [inner(a * 0.5)], [start(shape)], maximum_iterations=4)
        return [last], {}

    (found,) = check(build)
    np.testing.assert_array_equal(found, np.full(shape, 5.6875, "f") if shape else found)


@SHAPES
def test_rows_of_the_outer_loop(shape):
    """It reads and writes `TensorArray`s, and keeps what the gradient of its own part needs."""

    def build():
        x = tf.constant(np.arange(7.0 * np.prod(shape), dtype="f").reshape(7, *shape))
        read, written = tf.TensorArray(tf.float32, 7).unstack(x), tf.TensorArray(tf.float32, 7)

        def outer(i, a, written):
            b = tf.minimum(a * a, 9.0) + read.read(i)
            (count,) = counted(i, lambda j, n: [n + j * j], tf.constant(1))
            return i + 1, b - tf.cast(count, tf.float32), written.write(i, b)

        start_of = [tf.constant(0), start(shape), written]
        _, last, written = tf.while_loop(lambda i, *_: i < 7, outer, start_of)
        stacked = written.stack()
        return [last, stacked, *tf.gradients([tf.stop_gradient(last) * stacked], [x])], {}

    check(build, is_one_call=False)
    _, segments = run(lambda: (build()[0][:2], {}))
    assert_one_call(segments)


def test_what_a_nest_reads_from_a_feed(monkeypatch):
    """Large, so that it lies somewhere else in each step; and a predicate that depends on it."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float64, [100, 100]), tf.placeholder(tf.float64, [100, 100])
        step = lambda i, a: counted(i, lambda j, a: [tf.cond(x[0, 0] > 0.0, lambda: a + x, lambda: a - y)], a)  # noqa: E731
        (last,) = counted(3, step, tf.zeros([100, 100], tf.float64))
        for sign in (1.0, -1.0, 2.0):
            fed = np.full((100, 100), sign), np.full((100, 100), 10.0)
            found = session.run(last, {x: fed[0], y: fed[1]})
            np.testing.assert_array_equal(found, 3 * fed[0] if sign > 0 else -3 * fed[1])


@pytest.mark.parametrize("shape", [(), (3,), (200,)], ids=str)
def test_angles_of_which_some_are_too_large_for_loops(shape):
    """The operation's own kernel does these, in the middle of a nest, wherever what it writes lies."""

    def build():
        x = tf.placeholder(tf.float64, shape)
        large = lambda i, j: tf.cast(tf.equal(i + j, 3), tf.float64) * 2.0**60 + 1.0  # noqa: E731
        inner = lambda i: lambda j, a: [tf.cond(j < 2, lambda: tf.sin(a * large(i, j)), lambda: a + x)]  # noqa: E731
        return counted(4, lambda i, a: counted(4, inner(i), a), x), {x: np.full(shape, 0.5)}

    plain, _ = run(build, "off")
    compiled, segments = run(build)
    assert_one_call(segments)
    np.testing.assert_allclose(compiled, plain, rtol=1e-12)


def test_tensors_without_elements_go_through_branches():
    def build():
        x = tf.placeholder(tf.float32, [0, 2])
        step = lambda i, a: [tf.cond(i > 1, lambda: tf.tanh(a), lambda: tf.identity(a))]  # noqa: E731
        return counted(3, step, x), {x: np.zeros((0, 2), "f")}

    for mode in ("off", "eager"):
        (found,), _ = run(build, mode)
        assert found.shape == (0, 2)


def test_what_an_inner_loop_refuses_names_its_operation():
    def build():
        table, numbers = tf.constant(np.eye(3, dtype="f")), tf.placeholder(tf.int32, [2])
        inner = lambda i: lambda j, a: [a + tf.gather(table, numbers + i * j, name="rows")]  # noqa: E731
        return counted(4, lambda i, a: counted(3, inner(i), a), tf.zeros([2, 3])), {numbers: [0, 1]}

    for mode in ("off", "eager"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows"):
            run(build, mode)


# --- everything


@settings(max_examples=settings.default.max_examples // 10)
@given(st.integers(0, 10**9))
def test_random_nests(seed):
    nest = RandomNest(seed)
    plain, _ = run(nest.build, "off")
    for mode in ("eager", "background"):
        assert_same(run(nest.build, mode)[0], plain)
    with pytest.MonkeyPatch.context() as patch:
        pausing_after(patch, 1)
        assert_same(run(nest.build)[0], plain)


def test_most_random_nests_are_one_call():
    """So that the test above is one of machine code."""
    whole = 0
    for seed in range(5):
        _, segments = run(RandomNest(seed).build)
        controls = list(controls_in(segments))
        whole += len(controls) <= 1
    assert whole >= 4


# --- gradients


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_the_gradient_of_a_nest(monkeypatch, shape):
    """Against differences: of loops with no iterations at times, and of branches."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, shape)

        def inner(i):
            return lambda j, a: [tf.cond(j < 2, lambda: tf.tanh(a * x), lambda: a - 0.3 * x * a)]

        (last,) = counted(4, lambda i, a: counted(i, inner(i), a + 0.1 * x), tf.ones(shape, tf.float64))
        loss = tf.reduce_sum(last * last)
        (gradient,) = tf.gradients(loss, x)
        at, h = np.linspace(0.4, 0.9, 3) if shape else np.array(0.7), 1e-6
        for _ in range(STEPS):
            found = session.run(gradient, {x: at})
        for index in np.ndindex(*shape):
            step = np.zeros(shape)
            step[index] = h
            above, below = session.run(loss, {x: at + step}), session.run(loss, {x: at - step})
            np.testing.assert_allclose(found[index], (above - below) / (2 * h), rtol=1e-6, atol=1e-8)


# --- the end


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("end", ["deadline", "close"])
def test_an_inner_loop_without_end_is_ended(monkeypatch, shape, end):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        limit = tf.placeholder(tf.float32, [])
        total = tf.reduce_sum if shape else lambda a: a
        inner = lambda i, a: [tf.while_loop(lambda a: total(a) > limit, lambda a: [a + 1.0], [a])]  # noqa: E731
        last = counted(3, inner, start(shape))
        session.run(last, {limit: np.inf})
        assert_one_call([s for plan in plans_of(session) for p in plan.programs for s in p.segments])
        if end == "deadline":
            options = tf.RunOptions(timeout_in_ms=200)
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(last, {limit: -np.inf}, options=options)
            (found,) = session.run(last, {limit: np.inf})  # nothing is left of the step that was ended
            np.testing.assert_array_equal(found, np.ones(shape))
        else:
            with ends(session, session.close), pytest.raises(tf.errors.CancelledError):
                session.run(last, {limit: -np.inf})
