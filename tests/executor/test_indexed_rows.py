"""Loops in machine code that read and set elements of lists by number, as loops over `TensorArray`s do."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.graph.ops.lists import stacked_lists
from flowrt.graph.ops.lists import tensor_lists as lists
from flowrt.graph.resources.tensor_list import TensorList
from tests.executor.test_compiled_body import loops_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

TOLERANCE = 1e-12
"""Of the largest number of a result, in float64: 4,500 ulp, after 9 steps and their gradients."""


def in_modes(build, feeds, steps=2):
    """The fetches of the last step, or its error, without loops and with them, and which loops are whole.
    ``build()`` returns fetches and placeholders by name.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(1)
        fetches, names = build()
        initializer = tf.global_variables_initializer()
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for mode in ("off", "eager"):
            monkeypatch.setenv("FLOWRT_JIT", mode)
            with tf.Session(graph=graph) as session:
                session.run(initializer)
                try:
                    for _ in range(steps):
                        found[mode] = session.run(fetches, {names[k]: value for k, value in feeds.items()})
                except tf.errors.InvalidArgumentError as error:
                    found[mode] = error
                whole = loops_of(session)
    return found["off"], found["eager"], whole


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def moving(reads, sets, n=6, once=False):
    """Element reads[t], twice, becomes element sets[t] of a list whose first element is set already."""
    x, limit = tf.placeholder(tf.float32, [n, 2, 3]), tf.placeholder(tf.int32, [])
    source = stacked_lists.tensor_list_from_tensor(x, [2, 3])
    target = lists.tensor_list_reserve([2, 3], n, element_dtype=tf.float32)
    target = lists.tensor_list_set_item(target, 0, tf.ones([2, 3]))
    places, targets = tf.constant(reads, tf.int32), tf.constant(sets, tf.int32)

    def body(t, target):
        read = lists.tensor_list_get_item(source, tf.gather(places, t), [2, 3], element_dtype=tf.float32)
        at = tf.gather(targets, t)
        return t + 1, lists.tensor_list_set_item(target, at, 2.0 * read, _write_once=once)

    _, target = tf.while_loop(lambda t, _: t < limit, body, [tf.constant(0), target])
    stack = stacked_lists.tensor_list_stack(target, [2, 3], element_dtype=tf.float32)
    return [stack, lists.tensor_list_length(target), tf.gradients(stack, x)[0]], {"x": x, "limit": limit}


X = np.random.default_rng(0).normal(size=(6, 2, 3)).astype("f")
numbers = st.lists(st.integers(0, 5), min_size=6, max_size=6)


@settings(max_examples=15, deadline=None)
@given(numbers, numbers, st.integers(0, 6))
def test_elements_are_read_and_set_by_number(reads, sets, limit):
    plain, compiled, whole = in_modes(lambda: moving(reads, sets), {"x": X, "limit": limit})
    assert whole[0]
    assert_equal(compiled, plain)


def summing(places, n=4):
    """What is added to elements of a list, of which one is set already."""
    x, limit = tf.placeholder(tf.float32, [6, 2, 3]), tf.placeholder(tf.int32, [])
    target = lists.tensor_list_reserve([2, 3], n, element_dtype=tf.float32)
    target = lists.tensor_list_set_item(target, 1, tf.ones([2, 3]))
    indices = tf.constant(places, tf.int32)

    def body(t, target):
        return t + 1, lists.add_at(target, tf.gather(indices, t), tf.gather(x, t), element_dtype=tf.float32)

    _, target = tf.while_loop(lambda t, _: t < limit, body, [tf.constant(0), target])
    stack = stacked_lists.tensor_list_stack(target, [2, 3], element_dtype=tf.float32)
    return [stack, tf.convert_to_tensor(tf.gradients(stack, x)[0])], {"x": x, "limit": limit}


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 6))
def test_elements_are_added_to(places, limit):
    plain, compiled, whole = in_modes(lambda: summing(places), {"x": X, "limit": limit})
    assert whole[0]
    assert_equal(compiled, plain)


def squares():
    """Of numbers, which are elements without dimensions, and their gradient."""
    x = tf.placeholder(tf.float64, [4])
    source = tf.TensorArray(tf.float64, 4, element_shape=[]).unstack(x)
    target = tf.TensorArray(tf.float64, 4, element_shape=[])
    body = lambda t, a: (t + 1, a.write(3 - t, source.read(t) ** 2))  # noqa: E731
    _, target = tf.while_loop(lambda t, _: t < 4, body, [tf.constant(0), target])
    stack = target.stack()
    return [stack, tf.gradients(stack * [1.0, 10, 100, 1000], x)[0]], {"x": x}


def test_elements_that_are_numbers():
    _, (stack, gradient), whole = in_modes(squares, {"x": [1, 2, 3, 4]})
    assert whole == [True, True]
    assert stack.tolist() == [16, 9, 4, 1]
    assert gradient.tolist() == [2000, 400, 60, 8]


def test_an_element_to_add_to_has_to_be_there():
    plain, compiled, whole = in_modes(lambda: summing([0, 4, 9, 1, 1, 1]), {"x": X, "limit": 6})
    assert whole[0]
    assert isinstance(compiled, tf.errors.InvalidArgumentError)
    assert str(compiled) == str(plain)


@pytest.mark.parametrize(
    ("reads", "sets"),
    [
        pytest.param([0, 6, 7, 1, 1, 1], [1, 2, 3, 4, 5, 0], id="read behind the end"),
        pytest.param([0, 1, -1, 1, 1, 1], [1, 2, 3, 4, 5, 0], id="read in front"),
        pytest.param([0, 1, 2, 3, 4, 5], [1, 2, 6, 4, 5, 0], id="set behind the end"),
        pytest.param([0, 1, 2, 3, 4, 5], [1, 2, 2, 4, 5, 3], id="set twice"),
        pytest.param([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0], id="set before the loop"),
    ],
)
def test_what_is_refused(reads, sets):
    """With the words of the operations' own kernels."""
    plain, compiled, whole = in_modes(lambda: moving(reads, sets, once=True), {"x": X, "limit": 6})
    assert whole[0]
    assert isinstance(compiled, tf.errors.InvalidArgumentError)
    assert str(compiled) == str(plain)


def recurrent():
    """Over time, with sequences of different lengths, and the gradients of weights and inputs."""
    x, lengths = tf.placeholder(tf.float64, [4, 9, 5]), tf.placeholder(tf.int32, [4])
    cell = tf.nn.rnn_cell.BasicLSTMCell(6, dtype=tf.float64)
    outputs, state = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float64)
    loss = tf.reduce_sum(outputs * outputs) + tf.reduce_sum(state.c)
    gradients = tf.gradients(loss, [*tf.trainable_variables(), x])
    return [outputs, *state, loss, *gradients], {"x": x, "lengths": lengths}


def test_a_recurrent_network_over_time():
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 9, 5)), "lengths": np.array([9, 0, 3, 7])}
    plain, compiled, whole = in_modes(recurrent, feeds)
    assert whole == [True, True]
    for one, other in zip(compiled, plain, strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(other).max(initial=1)


def lstm():
    """Over time, as it is trained."""
    x = tf.placeholder(tf.float64, [4, 9, 5])
    cell = tf.nn.rnn_cell.BasicLSTMCell(6, dtype=tf.float64)
    outputs, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float64)
    loss = tf.reduce_sum(outputs * outputs)
    return [outputs, loss, *tf.gradients(loss, tf.trainable_variables())], {"x": x}


def test_the_loops_of_an_lstm_are_whole():
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 9, 5))}
    plain, compiled, whole = in_modes(lstm, feeds)
    assert whole == [True, True]
    for one, other in zip(compiled, plain, strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(other).max(initial=1)


def test_what_is_fetched_is_the_callers():
    """Of the same rows, twice."""

    def build():
        fetches, names = moving([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0])
        handle = fetches[0].op.inputs[0]
        both = stacked_lists.tensor_list_concat(handle, [2, 3], [], element_dtype=tf.float32)[0]
        return [fetches[0], both], names

    _, (stack, joined), _ = in_modes(build, {"x": X, "limit": 6})
    np.testing.assert_array_equal(stack.reshape(12, 3), joined)
    assert not np.shares_memory(stack, joined)


# --- memory


def test_a_list_that_was_read_is_let_go_of(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Graph().as_default(), tf.Session() as session:
        limit = tf.placeholder(tf.int32, [])
        x = tf.fill([40, 8], tf.to_float(limit))
        array = tf.TensorArray(tf.float32, 40, element_shape=[8], clear_after_read=False).unstack(x)
        body = lambda i, total: (i + 1, total * 0.5 + array.read(i))  # noqa: E731
        _, total = tf.while_loop(lambda i, _: i < limit, body, [0, tf.zeros([8])])
        assert session.run(total, {limit: 2}).tolist() == [3.0] * 8
        assert all(loops_of(session))
        gc.collect()
        alive = [one for one in gc.get_objects() if isinstance(one, TensorList) and one.rows is not None]
        assert not [one for one in alive if one.rows.shape == (40, 8)]
