"""`flowrt.functions.function`: one operation a call, one trace a kind of call, effects in order, any
derivative."""

from __future__ import annotations

import collections
import gc
import itertools
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph() as graph:
        yield graph


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


def calls() -> list[tf.Operation]:
    return [op for op in tf.get_default_graph().get_operations() if op.type == "PartitionedCall"]


# --- calls and traces


def test_a_call_is_one_operation_and_equal_calls_share_a_trace():
    traced = []

    @tf.function
    def affine(x, scale=2.0):
        traced.append(x)
        return x * scale + 1.0

    x = tf.placeholder(tf.float32, [3])
    outputs = [affine(x), affine(x + 1), affine(x, scale=2.0), affine(scale=2.0, x=x)]
    assert len(traced) == 1
    assert len(calls()) == 4
    assert affine.experimental_get_tracing_count() == 1
    assert affine.__name__ == "affine"
    np.testing.assert_array_equal(run(outputs, {x: [1, 2, 3]})[1], [5, 7, 9])
    assert [op.name for op in calls()] == ["affine", "affine_1", "affine_2", "affine_3"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2), (1, 1.0), (1, True), (0.0, -0.0), ([1, 2], (1, 2)), ({"a": 1}, {"b": 1}), (None, 0),
        (np.float32(1), np.float64(1)), (np.zeros(2), np.zeros(3)), ("a", "b"), (Pair(1, 2), (1, 2)),
    ],
)  # fmt: skip
def test_a_trace_is_for_equal_python_values_and_equal_kinds_of_tensors(first, second):
    count = itertools.count(1)
    f = tf.function(lambda value: next(count))
    found = [f(first), f(second), f(first), f(second)]
    assert run(found) == [1, 2, 1, 2]


def test_nan_and_values_that_have_no_hash_are_equal_to_themselves():
    count = itertools.count(1)
    f = tf.function(lambda value: next(count))
    unhashable = [{1, 2}, {1, 2}]
    assert run([f(float("nan")), f(float("nan"))]) == [1, 1]
    assert run([f(unhashable[0]), f(unhashable[0]), f(unhashable[1])]) == [2, 2, 3]


def test_shapes_are_relaxed_after_several():
    shapes = []

    @tf.function
    def total(x):
        shapes.append(x.shape.as_list())
        return tf.reduce_sum(x)

    found = [total(tf.ones([n, 2])) for n in (1, 2, 3, 4, 5, 6, 1)]
    assert run(found) == [2, 4, 6, 8, 10, 12, 2]
    assert shapes == [[1, 2], [2, 2], [3, 2], [None, 2]]


def test_repeated_retracing_warns_once_and_says_what_changed():
    @tf.function
    def power(x, n):
        return x**n

    x = tf.constant(2.0)
    for n in range(4):
        power(x, n)
    with pytest.warns(
        RuntimeWarning,
        match=r"power\(x, n\) was traced 5 times.*test_function.py:\d+.*'n' was .*3 and is .*4",
    ):
        power(x, 4)
    power(x, 5)


def test_structures_go_in_and_out():
    @tf.function
    def swap(pair, options):
        return Pair(pair.right, None), {"sum": [options["a"] + options["b"], 7], "text": "ok"}

    pair, named = swap(Pair(tf.constant(1.0), tf.constant([2.0])), {"b": tf.constant(3), "a": np.int32(4)})
    assert isinstance(pair, Pair)
    assert pair.right is None
    assert run([pair.left, named["sum"], named["text"]])[1] == [7, 7]
    assert run(named["text"]) == b"ok"
    assert pair.left.shape.as_list() == [1]


def test_a_tensor_array_goes_in_and_out():
    @tf.function
    def fill(array, x):
        return array.write(0, x).write(1, 2 * x)

    array = fill(tf.TensorArray(tf.float32, 2), tf.constant(3.0))
    np.testing.assert_array_equal(run(array.stack()), [3, 6])


def test_a_function_without_results_gives_its_operation():
    v = tf.Variable(1.0)

    @tf.function
    def reset():
        v.assign(5.0)

    @tf.function
    def step():
        return v.assign_add(1.0).op, v.read_value()

    done, (op, value) = reset(), step()
    assert done.type == op.type == "PartitionedCall"
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(done)
        assert session.run(v) == 5
        session.run(op)
        assert session.run(v) == 6
        assert session.run(value) == 7


def test_an_input_signature_makes_one_trace():
    @tf.function(input_signature=[tf.TensorSpec([None, 2]), {"n": tf.TensorSpec([], tf.int32)}])
    def f(x, options, factor=3.0):
        assert x.shape.as_list() == [None, 2]
        return x * factor + tf.cast(options["n"], tf.float32)

    found = [f([[1.0, 2.0]], {"n": 1}), f(np.zeros([2, 2], np.float32), {"n": tf.constant(2)})]
    assert f.experimental_get_tracing_count() == 1
    np.testing.assert_array_equal(run(found)[0], [[4, 7]])
    for arguments, message in [
        (([1.0, 2.0], {"n": 1}), r"'x': expected float32\[\?, 2\]; got float32\[2\]"),
        (([[1.0, 2.0]], {"n": 1.5}), "'options': expected int32"),
        (([[1.0, 2.0]], {"m": 1}), "'options'"),
        (([[1.0, 2.0]], {"n": 1}, 4.0), "'factor': expected its default 3.0"),
    ]:
        with pytest.raises((InvalidArgumentError, DTypeError), match=message):
            f(*arguments)
    with pytest.raises(DTypeError, match="list of TensorSpecs; got 3"):
        tf.function(lambda x: x, input_signature=[3])


def test_a_concrete_function_is_one_trace():
    @tf.function
    def f(x, n):
        return {"power": x**n}

    traced = f.get_concrete_function(tf.TensorSpec([None]), 2)
    assert f.experimental_get_tracing_count() == 1
    assert traced.graph is not tf.get_default_graph()
    assert [t.shape.as_list() for t in traced.inputs] == [[None]]
    assert traced.structured_outputs["power"] is traced.outputs[0]
    assert not traced.captured_inputs
    np.testing.assert_array_equal(run(traced(tf.constant([3.0]), 2)["power"]), [9])
    for arguments in ([tf.constant([3]), 2], [tf.constant([3.0]), 3], [tf.constant([[3.0]]), 2]):
        with pytest.raises(
            InvalidArgumentError, match=r"f\(x, n\): expected the arguments that it was traced with"
        ):
            traced(*arguments)
    with pytest.raises(DTypeError, match="expected a value that converts to a tensor; got TensorSpec"):
        traced(tf.TensorSpec([1]), 2)


# --- methods


class Scaled:
    def __init__(self, factor):
        self.factor, self.traces = factor, 0

    @tf.function
    def times(self, x):
        self.traces += 1
        return x * self.factor

    @tf.function(input_signature=[tf.TensorSpec([])])
    def declared(self, x):
        return x * self.factor


def test_methods_belong_to_their_objects():
    one, other = Scaled(2.0), Scaled(3.0)
    x = tf.constant(1.0)
    found = [one.times(x), one.times(x), other.times(x), one.declared(5), other.declared(5)]
    assert run(found) == [2, 2, 3, 10, 15]
    assert (one.traces, other.traces) == (1, 1)


# --- variables


def test_variables_are_made_by_the_first_trace_in_the_graph_itself():
    @tf.function
    def dense(x):
        w = tf.get_variable("w", [2, 2], initializer=tf.ones_initializer())
        assert w.graph is tf.get_default_graph().root
        return tf.matmul(x, w)

    with tf.variable_scope("net"):
        found = [dense(tf.ones([1, 2]))]
    found.append(dense(tf.ones([3, 2])))  # another trace, and another scope
    assert [v.name for v in tf.trainable_variables()] == ["net/w:0"]
    assert [v.shape for v in run(found)] == [(1, 2), (3, 2)]


def test_a_later_trace_makes_no_variables():
    @tf.function
    def f(x):
        return x + tf.Variable(1.0)

    f(tf.constant(1.0))
    with pytest.raises(
        InvalidArgumentError, match=r"f\(x\): expected no new variables after the first trace"
    ):
        f(tf.constant([1.0]))


def test_layers_without_a_name_have_the_variables_of_the_first_trace():
    @tf.function
    def inner(x):
        return tf.layers.dense(x, 2)

    @tf.function
    def net(x, training):
        with tf.variable_scope(None, "block"):
            x = tf.layers.dense(tf.layers.dense(x, 2), 2)
        with tf.variable_scope(None, "block"):
            x = tf.layers.dense(x, 2)
        x = inner(inner(tf.layers.dense(x, 2)))
        return tf.layers.batch_normalization(tf.layers.dense(x, 2), training=training)

    tf.layers.dense(tf.ones([1, 2]), 1)
    first = net(tf.ones([1, 3]), False)
    tf.layers.dense(tf.ones([1, 2]), 1)
    names = [v.name for v in tf.global_variables()]
    rows = run([first, net(tf.ones([2, 3]), False)])
    net(tf.ones([1, 3]), True)  # another trace, with the updates of the statistics
    assert [v.name for v in tf.global_variables()] == names
    assert [name.rpartition("/")[0] for name in names if name.endswith("kernel:0")] == [
        "dense", "block/dense", "block/dense_1", "block_1/dense", "dense_1", "dense_2", "dense_3", "dense_4",
    ]  # fmt: skip
    np.testing.assert_allclose(rows[1], np.repeat(rows[0], 2, axis=0), rtol=1e-6)


def test_a_call_takes_the_default_names_of_its_scope_only():
    @tf.function
    def f(x):
        return tf.layers.dense(x, 2)

    def last() -> str:
        return tf.global_variables()[-1].name

    x = tf.ones([1, 2])
    with tf.variable_scope("net"):
        f(x)
        tf.layers.dense(x, 2)
    assert last() == "net/dense_1/bias:0"
    with tf.variable_scope("net", reuse=True):
        f(x)
        tf.layers.dense(x, 2)
    assert len(tf.global_variables()) == 4
    f(x)  # its name is one in another scope
    tf.layers.dense(x, 2)
    assert last() == "dense/bias:0"
    with tf.variable_scope("net", reuse=True):
        layer = tf.layers.Dense(2)
        layer(x)
    assert layer.scope_name == "net/dense"


def test_a_layers_updates_run_with_the_function():
    @tf.function
    def f(x):
        return tf.layers.batch_normalization(x, momentum=0.5, training=True)

    y = f(tf.constant([[1.0], [3.0]]))
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert updates == []
    with tf.control_dependencies(updates):
        y = tf.identity(y)
    mean = next(v for v in tf.global_variables() if "moving_mean" in v.name)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        session.run(y)
        assert session.run(mean).tolist() == [1.5]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function, tf.recompute], ids=["as it is", "function", "re"])
def test_a_layers_updates_run_where_the_branch_is_taken_or_the_body_runs(wrap):
    @wrap
    def f(x):
        return tf.layers.batch_normalization(x, momentum=0.5, training=True, name="norm", reuse=tf.AUTO_REUSE)

    x, p = tf.constant([[1.0], [3.0]]), tf.placeholder(tf.bool, [])
    y = tf.cond(p, lambda: f(x), lambda: x)
    looped = tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, z + f(x)), [0, x])[1]
    gradients = [tf.gradients(tf.reduce_sum(z * z), x)[0] for z in (y, looped)]
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    mean = next(v for v in tf.global_variables() if "moving_mean" in v.name)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = []
        for fetch, holds in (
            (y, False),
            (y, True),
            (gradients[0], True),
            (looped, True),
            (gradients[1], True),
        ):
            session.run(mean.initializer)
            session.run(fetch, {p: holds})
            found.append(session.run(mean).tolist())
    assert found == [[0], [1], [1], [1.5], [1.5]]


def test_a_session_inside_is_one_error():
    @tf.function
    def f(x):
        return tf.Session().run(x)

    with pytest.raises(
        InvalidArgumentError, match=r"test_function.py:\d+\): Session: .* function 'f' is being"
    ):
        f(tf.constant(1))
    with pytest.raises(InvalidArgumentError, match=r"the body of 'while' is being built"):
        tf.while_loop(lambda i: i < 3, lambda i: i + tf.Session().run(tf.constant(1)), [0])


def test_after_a_trace_that_failed_the_next_one_is_the_first():
    @tf.function
    def f(x, ok):
        w = tf.Variable(2.0)
        if not ok:
            raise ZeroDivisionError
        return x * w

    with pytest.raises(ZeroDivisionError):
        f(tf.constant(1.0), False)
    assert not calls()
    assert run(f(tf.constant(3.0), True)) == 6


# --- what a trace reads


def test_captures_are_inputs_of_every_call():
    outside = tf.placeholder(tf.float32, [])
    f = tf.function(lambda x: x + outside)
    total = f(f(tf.constant(1.0)))
    assert run(total, {outside: 10.0}) == 21
    leaked: list[Any] = []
    tf.function(lambda x: leaked.append(x * 2))(tf.constant(1.0))
    with tf.Graph().as_default(), pytest.raises(InvalidArgumentError):
        tf.add(tf.constant(1.0), leaked[0])
    with pytest.raises(InvalidArgumentError, match="is inside function"):
        tf.add(outside, leaked[0])


def test_a_trace_made_in_a_branch_serves_the_graph_around():
    count = itertools.count()

    @tf.function
    def f(x):
        next(count)
        return 2 * x

    x = tf.placeholder(tf.float32, [])
    y = tf.cond(x > 0, lambda: f(x), lambda: -f(-x))
    assert run([y, f(x)], {x: -3.0}) == [-6, -6]
    assert next(count) == 1


def test_what_a_branch_captures_stays_in_the_branch():
    x = tf.placeholder(tf.float32, [])

    def branch():
        inner = x * 3
        f = tf.function(lambda y: y + inner)
        return f(f(1.0) + inner)

    assert run(tf.cond(x > 0, branch, lambda: x), {x: 2.0}) == 19


def test_calls_nest_and_end_when_python_says_so():
    @tf.function
    def power(x, n):
        return x * power(x, n - 1) if n else tf.constant(1.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(power(tf.constant(2.0), 6)) == 64


def test_a_recursive_call_is_one_error_with_the_users_line():
    @tf.function
    def f(x):
        return f(x) + 1

    @tf.function
    def g(x, n=0):
        return g(x, n + 1)

    for bad in (f, g):
        with pytest.raises(InvalidArgumentError, match=r"test_function\.py:\d+\): function .* calls itself"):
            bad(tf.constant(1.0))
    assert not calls()


def test_traces_end_with_their_function_and_their_graph():
    def owner():
        with tf.Graph() as graph:
            f = tf.function(lambda x: x + 1)
            f(tf.constant(1.0))
            return weakref.ref(f), weakref.ref(graph), f

    function, graph, f = owner()
    gc.collect()
    assert graph() is None
    del f
    gc.collect()
    assert function() is None


def test_each_graph_has_its_own_traces():
    count = itertools.count(1)
    f = tf.function(lambda x: x * next(count))
    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            found.append(run(f(tf.constant(1.0))))
    assert found == [1, 2]


def test_threads_share_one_trace():
    graph, count, barrier = tf.get_default_graph(), itertools.count(), threading.Barrier(4)
    f = tf.function(lambda x: x + next(count))

    def call():
        with graph.as_default():
            barrier.wait()
            f(1.0)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(count) == 1
    assert len(calls()) == 4


# --- arguments that do not fit


@pytest.mark.parametrize("arguments", [((), {}), ((1, 2, 3), {}), ((1,), {"z": 2}), ((1,), {"x": 2})])
def test_wrong_arguments_name_the_signature(arguments):
    f = tf.function(lambda x, y=1: x, name="f")
    with pytest.raises(
        DTypeError, match=r"test_function\.py:\d+\): function f\(x, y=1\): expected its arguments"
    ):
        f(*arguments[0], **arguments[1])


def test_results_that_are_no_tensors_name_the_function():
    with pytest.raises(DTypeError, match=r"function f\(\): expected results that can become tensors"):
        tf.function(lambda: {"a": object()}, name="f")()
    with pytest.raises(DTypeError, match="expected a callable; got 3"):
        tf.function(3)


# --- effects


def test_effects_run_with_the_call_and_in_order():
    v, log = tf.Variable(1.0), []

    @tf.function
    def f(x):
        tf.py_func(lambda value: log.append(("before", float(value))), [v], [])
        v.assign_add(x)
        tf.py_func(lambda value: log.append(("after", float(value))), [v], [])
        v.assign(v * 2)
        return x + 1

    @tf.function
    def outer(x):
        return f(x) * 2

    x = tf.placeholder(tf.float32, [])
    for y in (f(x), outer(x), tf.cond(x > 0, lambda: outer(x), lambda: x)):
        log.clear()
        with tf.Session() as session:
            session.run(v.initializer)
            session.run(y, {x: 3.0})
            assert log == [("before", 1.0), ("after", 4.0)]
            assert session.run(v) == 8


def test_a_failed_assertion_stops_the_writes_behind_it():
    v = tf.Variable(1.0)

    @tf.function
    def f(x):
        tf.Assert(x > 0, ["positive", x])
        v.assign(x)

    x = tf.placeholder(tf.float32, [])
    op = f(x)
    with tf.Session() as session:
        session.run(v.initializer)
        with pytest.raises(InvalidArgumentError, match="positive"):
            session.run(op, {x: -1.0})
        assert session.run(v) == 1
        session.run(op, {x: 2.0})
        assert session.run(v) == 2


def test_effects_of_branches_and_loops_inside_run():
    v = tf.Variable(0.0)

    @tf.function
    def f(n):
        tf.cond(n > 2, lambda: v.assign_add(100.0), lambda: v.assign_add(1.0))
        return tf.while_loop(lambda i: i < n, lambda i: _counted(v, i), [0])

    n = tf.placeholder(tf.int32, [])
    y = f(n)
    with tf.Session() as session:
        session.run(v.initializer)
        assert session.run(y, {n: 4}) == 4
        assert session.run(v) == 104


def _counted(v, i):
    v.assign_add(1.0)
    return i + 1


def test_who_waits_for_the_call_waits_for_its_effects():
    v = tf.Variable(1.0)

    @tf.function
    def f():
        v.assign(3.0)
        return tf.constant(0)

    with tf.control_dependencies([f()]):
        y = v.read_value() + 1
    assert run(y) == 4


# --- devices


def test_a_function_may_span_devices():
    config = tf.ConfigProto(device_count={"CPU": 2})

    @tf.function
    def f(x):
        with tf.device("/cpu:1"):
            y = x * 2
        return inner(y) + x

    @tf.function
    def inner(x):
        with tf.device("/cpu:1"):
            return x + 1

    x = tf.placeholder(tf.float32, [])
    y = f(x)
    (g,) = tf.gradients(y, x)
    with tf.Session(config=config) as session:
        assert session.run([y, g], {x: 5.0}) == [16, 3]
        (placed,) = [p.placed for r in session._requests.values() for p in r.plans.values()]
        assert {node.device.rpartition(":")[2] for node in placed} == {"0", "1"}


def test_a_trace_is_for_one_device_scope():
    count = itertools.count()
    f = tf.function(lambda x: x + next(count))
    for device in ("/cpu:0", "/cpu:1", "/cpu:0"):
        with tf.device(device):
            f(1)
    assert next(count) == 2


# --- derivatives


def test_gradients_of_calls_of_any_order():
    v = tf.Variable(3.0)

    @tf.function
    def cube(x):
        return x * square(x) * v

    @tf.function
    def square(x):
        return tf.square(x)

    x = tf.placeholder(tf.float32, [])
    y = cube(x) + cube(2 * x)
    dx, dv = tf.gradients(y, [x, v])
    (d2,) = tf.gradients(dx, x)
    (dxv,) = tf.gradients(dx, v)
    (d3,) = tf.gradients(d2, x)
    assert run([y, dx, dv, d2, dxv, d3], {x: 2.0}) == [216, 324, 72, 324, 108, 162]


def test_gradients_inside_a_function():
    @tf.function
    def slope(x):
        return tf.gradients(tf.exp(2 * x), x)[0]

    x = tf.constant(0.0)
    y = slope(x)
    assert run([y, tf.gradients(y, x)[0]]) == [2, 4]


def test_forward_mode_through_calls():
    f = tf.function(lambda x: x * tf.sin(x))
    x = tf.constant(0.7)
    y = f(x)
    (t,) = tf.forward_gradients([y], [x], [tf.constant(1.0)])
    (g,) = tf.gradients(y, x)
    found = run([t, g])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_step_with_functions_compiles_to_what_it_is_without():
    def net(wrap):
        with tf.Graph().as_default():
            layer = wrap(lambda x, w: tf.tanh(tf.matmul(x, w)))
            x, w = tf.placeholder(tf.float32, [4, 4]), tf.Variable(np.eye(4, dtype=np.float32))
            y = tf.reduce_sum(layer(layer(x, w), w))
            step = tf.train.GradientDescentOptimizer(0.1).minimize(y)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                session.run(step, {x: np.ones((4, 4))})
                plans = [p for r in session._requests.values() for p in r.plans.values()]
                placed = max((p.placed for p in plans), key=len)
                return collections.Counter(n.op.name for n in placed), session.run(w)

    (plain, value), (traced, same) = net(lambda f: f), net(tf.function)
    assert plain == traced
    np.testing.assert_array_equal(value, same)
