"""Plans on preassigned buffers compute what the reference interpreter does, and what they give out is the
caller's.
"""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.buffers import bound_tensors
from flowrt.executor.buffers.bound_tensors import POPULATED_FROM
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.op_def import Rule, Ufunc, registered_ops
from tests.each import nightly
from tests.executor.fused_sessions import WAIT_S
from tests.executor.random_programs import RandomProgram, assert_same

UNOPTIMISED = tf.ConfigProto(
    graph_options=tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0))
)


@pytest.mark.parametrize("block", nightly(range(10), 3))
def test_random_programs_give_what_the_reference_gives(block):
    for seed in range(block * 30, block * 30 + 30):
        program = RandomProgram(seed)
        config = UNOPTIMISED if seed % 2 else None
        with tf.Session(graph=program.graph, config=config) as session:
            assert_same(program.run(session), program.expected())


def test_a_feed_is_not_overwritten_by_what_runs_before_its_reader():
    first = tf.placeholder(tf.float32, [4])
    early = -(first * 2)  # its buffer is free again before `second` is made
    total = tf.reduce_sum(early)
    second = tf.placeholder(tf.float32, [4])
    with tf.Session() as session:
        found = session.run(second + total, {first: np.ones(4), second: np.arange(4)})
    np.testing.assert_array_equal(found, np.arange(4) - 8)


def test_the_pages_of_a_large_arena_are_populated_beside_binding(monkeypatch):
    populated = SimpleQueue()
    monkeypatch.setattr(bound_tensors, "populate", lambda address, nbytes: populated.put(nbytes))
    for elements in (16, POPULATED_FROM // 4):
        x = tf.placeholder(tf.float32, [elements])
        with tf.Session() as session:
            session.run(tf.reduce_sum(tf.cumsum(x) * 2), {x: np.ones(elements)})
    assert populated.get(timeout=WAIT_S) >= POPULATED_FROM
    assert populated.empty()


def test_host_arguments_that_are_computed_are_read_in_every_step():
    shape, axis = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.int32, [])
    x = tf.constant(np.arange(6.0))
    reshaped = tf.reshape(x, shape + 1)
    total = tf.reduce_sum(tf.reshape(x, [2, 3]), axis=1 - axis)
    with tf.Session() as session:
        assert session.run(reshaped, {shape: [0, 5]}).shape == (1, 6)
        assert session.run(reshaped, {shape: [1, 2]}).shape == (2, 3)
        np.testing.assert_array_equal(session.run(total, {axis: 1}), [3, 5, 7])
        np.testing.assert_array_equal(session.run(total, {axis: 0}), [3, 12])


def test_a_print_happens_in_every_step_and_not_when_the_plan_is_made(capsys):
    x = tf.placeholder(tf.float32, [2])
    shown = tf.Print(x + 1, [x], message="here ")
    with tf.Session() as session:
        call = session.make_callable(shown, [x])
        assert capsys.readouterr().err == ""
        for _ in range(3):
            call(np.ones(2))
        assert capsys.readouterr().err.count("here ") == 3


# --- what is fetched


def _sources():
    """Each kind of place that a fetched value may come from, by name: (tensor, feed)."""
    variable = tf.Variable([1.0, 2.0, 3.0])
    x = tf.placeholder(tf.float32, [3])
    large = tf.placeholder(tf.float32, [30000])
    free = tf.placeholder(tf.float32, [None])
    y = x + 1
    return {
        "variable": (variable, {}),
        "slice of a variable": (variable[1:], {}),
        "constant": (tf.constant([1.0, 2.0]), {}),
        "reshaped constant": (tf.reshape(tf.constant([1.0, 2.0]), [2, 1]), {}),
        "feed": (x, {x: np.ones(3, np.float32)}),
        "large feed": (large, {large: np.ones(30000, np.float32)}),
        "view of a large feed": (tf.reshape(large, [3, 10000]), {large: np.ones(30000, np.float32)}),
        "feed of unknown size": (tf.identity(free), {free: np.ones(5, np.float32)}),
        "result": (y, {x: np.ones(3, np.float32)}),
        "view of a result": (tf.reshape(y, [3, 1]), {x: np.ones(3, np.float32)}),
        "python's own array": (tf.py_func(lambda: KEPT, [], tf.float32), {}),
        "several": ([y, tf.identity(y), y, y[:2], y * 1.0], {x: np.ones(3, np.float32)}),
    }


KEPT = np.array([5.0, 6.0], np.float32)


@pytest.mark.parametrize("optimised", [True, False])
def test_fetched_arrays_are_the_callers(optimised):
    for name, (tensor, feed) in _sources().items():
        with tf.Session(config=None if optimised else UNOPTIMISED) as session:
            session.run(tf.global_variables_initializer())
            before = session.run(tensor, feed)
            several = before if isinstance(before, list) else [before]
            copies = [np.array(v) for v in several]
            for value in several:
                value[...] = -1  # also: it is writable
            for i, a in enumerate(several):
                assert not any(np.may_share_memory(a, b) for b in several[i + 1 :]), name
                assert not any(np.may_share_memory(a, fed) for fed in feed.values()), name
            again = session.run(tensor, feed)
            for a, b in zip(again if isinstance(again, list) else [again], copies, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=name)


def test_a_fetched_array_keeps_its_value_in_later_runs():
    x = tf.placeholder(tf.float32, [3])
    y, loose = tf.square(x + 1), tf.placeholder(tf.float32, [None])
    with tf.Session() as session:
        for fed, tensor in ((x, y), (loose, loose * 2)):
            results = [session.run(tensor, {fed: np.full(3, i)}) for i in range(5)]
            singles = [session.run(tensor, {fed: np.full(3, i)}).tolist() for i in range(5)]
            assert [r.tolist() for r in results] == singles


def test_a_feed_is_left_as_it_was():
    x = tf.placeholder(tf.float32, [None])
    fed = np.ones(100_000, np.float32)
    with tf.Session() as session:
        session.run(tf.nn.relu(-(x * 3) + 1), {x: fed})
    assert (fed == 1).all()


def test_arguments_of_python_functions_keep_their_values():
    seen = []
    x = tf.placeholder(tf.float32, [2])
    noted = tf.py_func(seen.append, [x * 2], [])
    with tf.Session() as session:
        for i in range(3):
            session.run(noted, {x: [i, i]})
    assert [s.tolist() for s in seen] == [[0, 0], [2, 2], [4, 4]]


# --- what plans rely on in kernels


def _cases():
    for op in registered_ops().values():
        if isinstance(op.kernel, Rule) or op.state is not None:
            continue
        for number, sample in enumerate(op.samples(np.random.default_rng(0))):
            with tf.Graph() as graph:
                inputs = [
                    [tf.constant(y) for y in x] if isinstance(x, tuple) else tf.constant(x)
                    for x in sample.inputs
                ]
                made = op(*inputs, **sample.attrs)
                if isinstance(made, list) and not made:
                    continue
                first = made[0] if isinstance(made, list) else made
                node = first.node if isinstance(first, tf.Operation) else first.op.node
                arrays = [np.array(graph.node(name).attrs["value"]) for name, _ in node.inputs]
            attrs = {key: node.attrs[key] for key in op.kernel_attrs}
            yield f"{op.name}, sample {number}", op, node, arrays, attrs


def _results(op, node, arrays, attrs, **out):
    with np.errstate(all="ignore"):
        results = op.kernel(np, *kernel_arguments(op, arrays, node.attrs), **attrs, **out)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def test_kernels_return_memory_of_their_own_unless_their_op_is_an_alias():
    for name, op, node, arrays, attrs in _cases():
        results = [r for r in _results(op, node, arrays, attrs) if isinstance(r, np.ndarray)]
        again = [r for r in _results(op, node, arrays, attrs) if isinstance(r, np.ndarray)]
        for i, result in enumerate(results):
            inputs = [array for k, array in enumerate(arrays) if not (op.alias and k == op.aliased)]
            others = [*results[i + 1 :], *inputs, *([] if op.alias else again)]
            assert not any(np.shares_memory(result, other) for other in others), name


def test_elementwise_kernels_may_write_over_each_of_their_inputs():
    for name, op, node, arrays, attrs in _cases():
        if not (op.elementwise and op.takes_out) or node.outputs[0].dtype is tf.string:
            continue
        (expected,) = _results(op, node, arrays, attrs)
        spec = node.outputs[0]
        for position, array in enumerate(arrays):
            if (array.shape, array.dtype) == (spec.shape, spec.dtype.np):
                copies = [a.copy() for a in arrays]
                target = copies[position]
                if isinstance(op.kernel, Ufunc):
                    with np.errstate(all="ignore"):
                        op.kernel.bind(np)(*kernel_arguments(op, copies, node.attrs), target)
                else:
                    _results(op, node, copies, attrs, out=target)
                np.testing.assert_array_equal(target, expected, err_msg=f"{name}, over input {position}")


def test_a_kernel_does_not_write_over_an_input_that_another_input_is_a_view_of():
    x = tf.placeholder(tf.float32, [5, 5])
    y = tf.sigmoid(x)
    tanh_grad = registered_ops()["TanhGrad"](y, tf.transpose(y)) * 1.0
    fed = np.arange(25, dtype=np.float32).reshape(5, 5) / 10
    with tf.Session() as session:
        found = session.run(tanh_grad, {x: fed})
    s = 1 / (1 + np.exp(-fed))
    np.testing.assert_allclose(found, s.T * (1 - s * s), rtol=1e-5)
