"""`while_loop`: iterations, variables, what a body reads, order, loops in loops."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from tests.control_flow.counting import counted


def below(limit):
    return lambda i, *_: i < limit


# --- iterations


@pytest.mark.parametrize("count", [0, 1, 2, 499, 500, 501, 10_000])
def test_count_up(run, count):
    limit = tf.placeholder(tf.int32, [])
    n = tf.while_loop(lambda i: i < limit, lambda i: i + 1, [tf.constant(0)], parallel_iterations=20)
    assert run(n, {limit: count}) == count


def test_condition_and_body_run_as_often_as_they_should(session):
    asked, done = [], []
    n = tf.while_loop(
        lambda i: counted(i, asked) < 3, lambda i: counted(i, done) + 1, [tf.constant(0)], name="loop"
    )
    assert session.run(n) == 3
    assert asked == [0, 1, 2, 3]
    assert done == [0, 1, 2]


def test_no_iteration_gives_the_first_values(run):
    x = tf.placeholder(tf.float32, [None])
    v = tf.Variable([5.0, 6.0])
    i, y, z, c = tf.while_loop(
        below(0),
        lambda i, y, z, c: (i + 1, y * 2.0, z * 2.0, c * 2.0),
        [0, x, v, tf.constant([1.0])],
        shape_invariants=[
            tf.TensorShape([]),
            tf.TensorShape([None]),
            tf.TensorShape([2]),
            tf.TensorShape([1]),
        ],
    )
    found = run([i, y, z, c, y + 1.0], {x: [1, 2, 3]})
    for value, expected in zip(found, [0, [1, 2, 3], [5, 6], [1], [2, 3, 4]], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_condition_that_never_holds_by_itself(session):
    calls = []
    n = tf.while_loop(lambda i: tf.constant(False), lambda i: counted(i, calls) + 1, [tf.constant(4)])
    assert session.run(n) == 4
    assert calls == []


@pytest.mark.parametrize("limit,expected", [(0, 0), (3, 3), (5, 5), (9, 5), (-1, 0)])
def test_maximum_iterations(run, limit, expected):
    fed = tf.placeholder(tf.int32, [])
    loops = [
        tf.while_loop(lambda i: i < 5, lambda i: i + 1, [tf.constant(0)], maximum_iterations=m)
        for m in (limit, np.int64(limit), tf.constant(limit), fed)
    ]
    assert run(loops, {fed: limit}) == [expected] * 4


def test_maximum_iterations_of_a_loop_that_would_not_end(run):
    x = tf.while_loop(lambda x: True, lambda x: x * 2.0, [tf.constant(1.0)], maximum_iterations=7)
    assert run(x) == 128


def test_the_condition_may_depend_on_any_variable(run):
    i, x = tf.while_loop(
        lambda i, x: tf.reduce_sum(x) < 100.0, lambda i, x: (i + 1, x * 2.0), [0, tf.constant([1.0, 2.0])]
    )
    found = run([i, x])
    assert found[0] == 6
    np.testing.assert_array_equal(found[1], [64, 128])


def test_a_loop_without_a_counter_goes_by_its_condition_alone(session):
    left = [True, True, False]
    x = tf.while_loop(
        lambda x: tf.ensure_shape(tf.py_func(lambda: left.pop(0), [], tf.bool), []),
        lambda x: x + 1.0,
        [tf.constant(0.0)],
    )
    assert session.run(x) == 2


# --- variables


def test_rotation_and_swap(run):
    a, b, c, _ = tf.while_loop(
        lambda *v: v[3] < 4, lambda a, b, c, i: (b, c, a, i + 1), [1.0, 2.0, 3.0, tf.constant(0)]
    )
    assert run([a, b, c]) == [2, 3, 1]


def test_swap_of_large_arrays(run):
    p, q = tf.placeholder(tf.float32, [200, 200]), tf.placeholder(tf.float32, [200, 200])
    first, second = np.random.default_rng(0).normal(size=(2, 200, 200)).astype(np.float32)
    _, a, b, total = tf.while_loop(
        below(3), lambda i, a, b, t: (i + 1, b, a, t + a), [0, p, q, tf.zeros([200, 200])]
    )
    found = run([a, b, total], {p: first, q: second})
    np.testing.assert_array_equal(found[0], second)
    np.testing.assert_array_equal(found[1], first)
    np.testing.assert_array_equal(found[2], first + second + first)


def test_swap_with_arithmetic_on_the_old_values(run):
    """Fibonacci, and a value that is handed on and read after its successor was computed."""
    _, a, b, c = tf.while_loop(
        below(10),
        lambda i, a, b, c: (i + 1, b, a + b, tf.concat([c[1:], [a]], 0)),
        [0, tf.constant(0), tf.constant(1), tf.constant([0, 0, 0])],
    )
    found = run([a, b, c])
    assert found[:2] == [55, 89]
    np.testing.assert_array_equal(found[2], [13, 21, 34])


def test_one_value_becomes_several_variables(run):
    def body(i, a, b, c):
        x = a + 1.0
        return i + 1, x, x, b

    _, a, b, c = tf.while_loop(below(3), body, [0, tf.ones([2]), tf.zeros([2]), tf.zeros([2])])
    np.testing.assert_array_equal(run([a, b, c]), [[4, 4], [4, 4], [3, 3]])


def test_one_first_value_for_several_variables(run):
    x = tf.placeholder(tf.float32, [2])
    _, a, b = tf.while_loop(below(2), lambda i, a, b: (i + 1, a + 1.0, b * 10.0), [0, x, x])
    np.testing.assert_array_equal(run([a, b, x], {x: [1, 2]}), [[3, 4], [100, 200], [1, 2]])


def test_what_is_fed_is_not_changed(run):
    x = tf.placeholder(tf.float32, [2])
    data = np.array([1, 2], np.float32)
    y = tf.while_loop(lambda x: tf.reduce_sum(x) < 100.0, lambda x: x * 2.0, [x])
    run(y, {x: data})
    np.testing.assert_array_equal(data, [1, 2])


def test_what_came_in_is_still_there_behind_the_loop(run):
    x = tf.placeholder(tf.float32, [2])
    before = x * 3.0
    after = tf.while_loop(lambda y: tf.reduce_sum(y) < 100.0, lambda y: y * 2.0, [before])
    np.testing.assert_array_equal(
        run([before, after, before + after], {x: [1, 2]}), [[3, 6], [48, 96], [51, 102]]
    )


def test_a_variable_set_to_what_is_around(run):
    x, y = tf.placeholder(tf.float32, [2]), tf.constant([7.0, 8.0])
    _, a, b = tf.while_loop(below(2), lambda i, a, b: (i + 1, x, y), [0, tf.zeros([2]), tf.zeros([2])])
    np.testing.assert_array_equal(run([a, b], {x: [1, 2]}), [[1, 2], [7, 8]])


def test_strings_booleans_and_complex_numbers(run):
    _, s, b, c, big = tf.while_loop(
        below(3),
        lambda i, s, b, c, n: (i + 1, tf.strings.join([s, "x"]), tf.logical_not(b), c * 1j, n * 3),
        [0, tf.constant("a"), tf.constant(True), tf.constant(1 + 2j), tf.constant(1 << 40, tf.int64)],
    )
    assert run([s, b, c, big]) == [b"axxx", False, 2 - 1j, 27 << 40]


def test_arrays_of_strings(run):
    _, s = tf.while_loop(
        below(2),
        lambda i, s: (i + 1, tf.concat([s, s], 0)),
        [0, tf.constant(["a", "b"])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    assert run(s).tolist() == [b"a", b"b"] * 4


# --- what a body reads


def test_captures(run):
    x, v = tf.placeholder(tf.float32, [2]), tf.Variable([10.0, 20.0])
    once = tf.exp(x)
    y = tf.while_loop(below(3), lambda i, y: (i + 1, y + once * v + x), [0, tf.zeros([2])])[1]
    expected = 3 * (np.exp(np.float32([1, 2])) * [10, 20] + [1, 2])
    np.testing.assert_allclose(run(y, {x: [1, 2]}), expected, rtol=1e-6)


def test_a_variable_written_in_the_body_is_read_anew_in_each_iteration(run):
    v = tf.Variable(1.0)

    def body(i, seen):
        seen = seen.write(i, v.read_value())
        with tf.control_dependencies([v.assign(v * 2.0)]):
            return i + 1, seen

    seen = tf.while_loop(below(4), body, [0, tf.TensorArray(tf.float32, 4, element_shape=[])])[1]
    after = v.read_value()
    found = run([seen.stack(), after])
    np.testing.assert_array_equal(found[0], [1, 2, 4, 8])
    assert found[1] == 16


def test_a_variable_written_in_the_condition(run):
    v = tf.Variable(0)
    with tf.control_dependencies([v.assign_add(5)]):
        n = tf.while_loop(lambda i: v.assign_add(1) < 10, lambda i: i + 1, [tf.constant(0)])
    after = v.read_value()
    assert run([n, after]) == [4, 10]


def test_reads_around_a_loop_that_writes(session):
    v = tf.Variable(1.0)
    before = v.read_value()

    def body(i):
        with tf.control_dependencies([v.assign_add(1.0)]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    between = v.read_value()
    doubled = v.assign(v * 2.0)
    after = v.read_value()
    session.run(v.initializer)
    assert session.run([before, loop, between, doubled, after]) == [1, 3, 4, 8, 8]
    assert session.run([before, between]) == [8, 8]  # the loop is not needed


def test_an_effect_that_no_variable_needs(session):
    """TensorFlow 1 prunes what no loop variable needs; `control_dependencies` is how to keep it."""
    v = tf.Variable(0)

    def body(i):
        v.assign_add(100)
        with tf.control_dependencies([v.assign_add(1)]):
            return tf.identity(i) + 1

    loop = tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    session.run(v.initializer)
    session.run(loop)
    assert session.run(v) == 3


def test_a_branch_in_a_loop_that_writes(session):
    even, odd = tf.Variable(0), tf.Variable(0)

    def body(i):
        done = tf.cond(
            tf.equal(i % 2, 0), lambda: even.assign_add(i), lambda: odd.assign_add(i + even.read_value())
        )
        with tf.control_dependencies([done]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 6, body, [tf.constant(0)])
    with tf.control_dependencies([loop]):
        values = [even.read_value(), odd.read_value()]
    session.run(tf.global_variables_initializer())
    # odd: 1 + 0, 3 + 2, 5 + 6
    assert session.run(values) == [6, 17]


def test_two_loops_over_one_variable_run_one_behind_the_other(session):
    v = tf.Variable(1.0)

    def loop(change):
        def body(i):
            with tf.control_dependencies([change()]):
                return i + 1

        return tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])

    loops = [loop(lambda: v.assign_add(1.0)), loop(lambda: v.assign(v * 10.0))]
    session.run(v.initializer)
    session.run(loops)
    assert session.run(v) == 4000


def test_random_numbers_differ_from_iteration_to_iteration(session):
    def body(i, drawn):
        return i + 1, drawn.write(i, tf.random.uniform([3], seed=5))

    drawn = tf.while_loop(below(4), body, [0, tf.TensorArray(tf.float32, 4, element_shape=[3])])[1].stack()
    first, second = session.run(drawn), session.run(drawn)
    assert len(np.unique(np.concatenate([first, second]))) == 24


def test_dropout_in_a_loop_draws_a_mask_each_iteration(session):
    def body(i, masks):
        return i + 1, masks.write(i, tf.nn.dropout(tf.ones([1000]), keep_prob=0.5, seed=1))

    masks = tf.while_loop(below(2), body, [0, tf.TensorArray(tf.float32, 2, element_shape=[1000])])[1].stack()
    a, b = session.run(masks)
    assert set(np.unique(a)) == {0.0, 2.0}
    assert 300 < np.count_nonzero(a != b) < 700


def test_a_seeded_loop_draws_the_same_in_all_sessions(run):
    tf.set_random_seed(3)
    x = tf.while_loop(
        below(5), lambda i, x: (i + 1, x + tf.random.normal([2])), [0, tf.zeros([2], tf.float32)]
    )[1]
    np.testing.assert_array_equal(run(x), run(x))


# --- order


def test_a_loop_waits_for_what_is_before_it(session):
    calls = []
    first = counted(0, calls, "first")
    with tf.control_dependencies([first]):
        n = tf.while_loop(lambda i: i < 2, lambda i: counted(i, calls, "body") + 1, [tf.constant(0)])
    with tf.control_dependencies([n]):
        last = counted(0, calls, "last")
    session.run(last)
    assert calls == ["first", "body", "body", "last"]


def test_an_operation_outside_that_a_body_waits_for_runs_once(session):
    calls = []
    outside = counted(0, calls, "outside")

    def body(i):
        with tf.control_dependencies([outside]):
            return counted(i, calls, "body") + 1

    session.run(tf.while_loop(lambda i: i < 2, body, [tf.constant(0)]))
    assert calls == ["outside", "body", "body"]


def test_a_loop_that_makes_no_iteration_is_waited_for(session):
    calls = []
    n = tf.while_loop(lambda i: counted(i, calls, "cond") < 0, lambda i: i + 1, [tf.constant(0)])
    with tf.control_dependencies([n]):
        last = counted(0, calls, "last")
    session.run(last)
    assert calls == ["cond", "last"]


def test_the_order_inside_a_body(session):
    calls = []

    def body(i):
        a = counted(i, calls, "a")
        with tf.control_dependencies([a]):
            b = counted(i, calls, "b")
        with tf.control_dependencies([b]):
            return tf.identity(i) + 1

    session.run(tf.while_loop(lambda i: i < 2, body, [tf.constant(0)]))
    assert calls == ["a", "b"] * 2


# --- loops in loops


def test_a_loop_in_a_loop(run):
    def outer(i, total):
        return i + 1, tf.while_loop(lambda j, _: j <= i, lambda j, t: (j + 1, t + i * j), [0, total])[1]

    total = tf.while_loop(below(6), outer, [0, tf.constant(0)])[1]
    assert run(total) == sum(i * j for i in range(6) for j in range(i + 1))


def test_three_deep_with_branches(run):
    n = tf.placeholder(tf.int32, [])

    def inner(i, j):
        return lambda k, t: (k + 1, t + tf.cond((i + j + k) % 3 < 1, lambda: i * j * k, lambda: j - k))

    def middle(i):
        return lambda j, t: (j + 1, tf.while_loop(lambda k, _: k < j, inner(i, j), [0, t])[1])

    total = tf.while_loop(
        lambda i, _: i < n,
        lambda i, t: (i + 1, tf.while_loop(lambda j, _: j < i, middle(i), [0, t])[1]),
        [0, 0],
    )[1]
    expected = sum(
        i * j * k if (i + j + k) % 3 < 1 else j - k for i in range(7) for j in range(i) for k in range(j)
    )
    assert run(total, {n: 7}) == expected


def test_a_nested_loop_reads_what_is_around_both(run):
    x, v = tf.placeholder(tf.float32, [2]), tf.Variable(3.0)

    def outer(i, a):
        b = a * 0.5
        return i + 1, tf.while_loop(below(2), lambda j, c: (j + 1, c + b + x * v), [0, a])[1]

    a, x0 = np.zeros(2), np.array([1, 2])
    for _ in range(3):
        b = a * 0.5
        for _ in range(2):
            a = a + b + x0 * 3
    y = tf.while_loop(below(3), outer, [0, tf.zeros([2])])[1]
    np.testing.assert_allclose(run(y, {x: x0}), a, rtol=1e-6)


def test_a_loop_in_the_condition_of_a_loop(run):
    def holds(i):
        return tf.while_loop(lambda j: j * j < i, lambda j: j + 1, [tf.constant(0)]) < 4

    assert run(tf.while_loop(holds, lambda i: i + 1, [tf.constant(0)])) == 10


def test_a_large_value_through_nested_loops(run):
    x = tf.placeholder(tf.float32, [150, 150])

    def outer(i, a):
        return i + 1, tf.while_loop(below(3), lambda j, b: (j + 1, tf.transpose(b) + 1.0), [0, a])[1]

    y = tf.while_loop(below(3), outer, [0, x])[1]
    data = np.random.default_rng(1).normal(size=(150, 150)).astype(np.float32)
    expected = data
    for _ in range(9):
        expected = expected.T + np.float32(1)
    np.testing.assert_array_equal(run(y, {x: data}), expected)


# --- views with bounds that only the step knows


def on_modes(monkeypatch, build, config=None):
    """What ``build()``, fetches and feeds, gives with kernels and with compiled loops."""
    found = []
    for mode in ("off", "eager"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default():
            fetches, feeds = build()
            with tf.Session(config=config) as session:
                found.append(session.run(fetches, feeds))
    return found


@pytest.mark.parametrize("trips", [0, 1])
def test_a_view_that_begins_a_loop_or_leaves_it_keeps_its_values(monkeypatch, trips):
    def build():
        fed, k, n = (
            tf.placeholder(tf.float64, [4]),
            tf.placeholder(tf.int32, []),
            tf.placeholder(tf.int32, []),
        )
        x = tf.reverse(fed, [0])
        any_length = [tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([4])]
        _, part, changed = tf.while_loop(
            lambda i, *_: i < n, lambda i, _, v: (i + 1, v[:k], tf.tanh(v)), [0, x[:k], x], any_length
        )
        later = fed
        with tf.control_dependencies([part]):
            for _ in range(8):  # memory of x is used again
                later = tf.reverse(later, [0]) + 1.0
        with tf.control_dependencies([later]):
            return [tf.identity(part) * 1.0, changed], {fed: [1.0, 2.0, 3.0, 4.0], k: 3, n: trips}

    for part, changed in on_modes(monkeypatch, build):
        assert part.tolist() == [4.0, 3.0, 2.0]
        np.testing.assert_allclose(changed, np.tanh([4.0, 3.0, 2.0, 1.0]) if trips else [4.0, 3.0, 2.0, 1.0])


def test_a_view_that_leaves_a_branch_keeps_its_values(monkeypatch):
    def build():
        fed, k = tf.placeholder(tf.float64, [4]), tf.placeholder(tf.int32, [])
        x = tf.reverse(fed, [0])
        part = tf.cond(k > 2, lambda: x[:k], lambda: x[1:k])
        later = fed
        with tf.control_dependencies([part]):
            for _ in range(8):
                later = tf.reverse(later, [0]) + 1.0
        with tf.control_dependencies([later]):
            return tf.identity(part) * 1.0, {fed: [1.0, 2.0, 3.0, 4.0], k: 3}

    for part in on_modes(monkeypatch, build):
        assert part.tolist() == [4.0, 3.0, 2.0]


@pytest.mark.parametrize("kind", ["branch", "loop"])
def test_a_view_that_a_function_takes_and_returns_keeps_its_values(monkeypatch, kind):
    def build():
        fed, k = tf.placeholder(tf.float64, [4]), tf.placeholder(tf.int32, [])
        taken = tf.reverse(fed, [0])[:k]
        if kind == "branch":
            part = tf.cond(k > 2, lambda: taken, lambda: taken[1:])
        else:
            shapes = [tf.TensorShape([]), tf.TensorShape([None])]
            body = lambda i, _: (i + 1, taken[:k])  # noqa: E731
            part = tf.while_loop(lambda i, _: i < 2, body, [0, taken * 0.0], shapes)[1]
        later = fed
        with tf.control_dependencies([part]):
            for _ in range(8):
                later = tf.reverse(later, [0]) + 1.0
        with tf.control_dependencies([later]):
            return tf.identity(part) * 1.0, {fed: [1.0, 2.0, 3.0, 4.0], k: 3}

    for part in on_modes(monkeypatch, build):
        assert part.tolist() == [4.0, 3.0, 2.0]


def test_a_view_that_is_sent_from_a_loop_is_what_it_was(monkeypatch):
    def build():
        fed, k = tf.placeholder(tf.float64, [50_000]), tf.placeholder(tf.int32, [])

        def body(i, v, total):
            with tf.device("/cpu:0"):
                part, v = v[:k], v + 1.0
            with tf.device("/cpu:1"):
                return i + 1, v, total + tf.reduce_sum(tf.sqrt(tf.square(part)))

        with tf.device("/cpu:0"):
            start = [tf.constant(0), fed, tf.constant(0.0, tf.float64)]
        return tf.while_loop(lambda i, *_: i < 20, body, start)[2], {fed: np.ones(50_000), k: 40_000}

    two = tf.ConfigProto(device_count={"CPU": 2})
    assert on_modes(monkeypatch, build, two) == [40_000 * 210.0] * 2


# --- branches in place of a loop's variable


def with_product(product, first, second):
    return first, product(first, second)


BRANCHES = {
    "elementwise": (lambda h, k: (h * 2.0 + k, k), lambda h, k: (h * 2.0 + k, k)),
    "a product": (lambda h, k: (tf.matmul(h, k), k), lambda h, k: (h @ k, k)),
    "an old value read later": (lambda h, k: (h + k, h * 2.0), lambda h, k: (h + k, h * 2.0)),
    "the other read later": (
        lambda h, k: with_product(tf.matmul, h + k, k),
        lambda h, k: with_product(np.matmul, h + k, k),
    ),
    "exchanged": (lambda h, k: (k, h), lambda h, k: (k, h)),
    "a view of it": (lambda h, k: (h - tf.transpose(h), k), lambda h, k: (h - h.T, k)),
    "one value twice": (lambda h, k: 2 * (h + k,), lambda h, k: 2 * (h + k,)),
}
"""Of two matrices, and the same in NumPy."""


@pytest.mark.parametrize("first", BRANCHES)
@pytest.mark.parametrize("second", ["elementwise", "exchanged"])
@pytest.mark.parametrize("view", [None, lambda h: tf.reshape(h, [9]), tf.identity])
def test_a_branch_in_place_of_a_variable(monkeypatch, first, second, view):
    """Its other argument is the second variable, or a view of the first."""
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    h, k = start = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 3, 3))

    def build():
        fed = tf.placeholder(tf.float64, [2, 3, 3])

        def body(i, h, k):
            other = k if view is None else view(h)

            def branch(name):
                matrix = (lambda: tf.reshape(other, [3, 3])) if other.shape == [9] else (lambda: other)
                return lambda: BRANCHES[name][0](h, matrix())

            return i + 1, *tf.cond(tf.equal(i % 2, 0), branch(first), branch(second))

        return tf.while_loop(below(5), body, [0, *tf.unstack(fed)])[1:], {fed: start}

    unoptimised = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0))
    config = tf.ConfigProto(graph_options=unoptimised) if view is tf.identity else None
    for i in range(5):
        h, k = BRANCHES[second if i % 2 else first][1](h, k if view is None else h)
    for found in on_modes(monkeypatch, build, config):
        np.testing.assert_allclose(found, [h, k], rtol=1e-12)
