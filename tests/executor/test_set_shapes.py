"""A wrong shape that a user has set ends the step, whatever made the tensor and whatever reads it: no value
is stretched, cut or read beyond its end.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit

MODES = ["off", *(["eager"] if host_jit.is_available() else [])]


def lengths(n):
    return tf.placeholder_with_default(np.array([n], np.int32), [1])


def fed(n):
    return tf.placeholder_with_default(np.arange(n, dtype=np.float32), [None])


def generated(n):
    values = tf.data.Dataset.from_generator(lambda: iter([np.arange(n, dtype=np.float32)] * 9), tf.float32)
    return values.make_one_shot_iterator().get_next()


def dequeued(n):
    queue = tf.FIFOQueue(9, tf.float32)
    with tf.control_dependencies([queue.enqueue(fed(n))]):
        return queue.dequeue()


def branched(n):
    return tf.cond(
        tf.placeholder_with_default(True, []), lambda: tf.fill(lengths(n), 2.0), lambda: tf.ones([9])
    )


def looped(n):
    grown = [tf.TensorShape([]), tf.TensorShape([None])]
    grow = lambda i, v: (i + 1, tf.concat([v, [1.0]], 0))  # noqa: E731
    return tf.while_loop(lambda i, _: i < lengths(n)[0], grow, [1, tf.constant([0.0])], grown)[1]


MADE_BY = {
    "a default": fed,
    "a generator": generated,
    "a queue": dequeued,
    "py_func": lambda n: tf.py_func(lambda: np.arange(n, dtype=np.float32), [], tf.float32),
    "fill": lambda n: tf.fill(lengths(n), 7.0),
    "reshape": lambda n: tf.reshape(fed(n), lengths(n)),
    "range": lambda n: tf.cast(tf.range(lengths(n)[0]), tf.float32),
    "random": lambda n: tf.random_uniform(lengths(n)),
    "a slice": lambda n: tf.range(9.0)[: lengths(n)[0]],
    "boolean_mask": lambda n: tf.boolean_mask(tf.range(9.0), tf.range(9) < lengths(n)[0]),
    "unique": lambda n: tf.unique(fed(n))[0],
    "decode_raw": lambda n: tf.decode_raw(np.arange(n, dtype=np.float32).tobytes(), tf.float32),
    "a branch": branched,
    "a loop": looped,
}

READERS = {
    "add": lambda y, said: y * 2.0 + tf.ones([said]),
    "exp": lambda y, said: tf.exp(tf.tanh(y)),
    "product": lambda y, said: tf.matmul(tf.ones([2, said]), tf.reshape(y, [said, 1])),
    "sum": lambda y, said: tf.reduce_sum(y),
    "rows": lambda y, said: tf.stack([y, y]),
    "loop": lambda y, said: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * 0.5 + y), [0, y])[1],
    "branch": lambda y, said: tf.cond(tf.reduce_sum(y) > 1e9, lambda: y, lambda: y + 1.0),
}


def check(made, readers, length, said):
    """One fetch after the other, so that each extends the request before it, and all at once."""
    with tf.Graph().as_default():
        y = MADE_BY[made](length)
        y.set_shape([said])
        fetches = [y, *(READERS[reader](y, said) for reader in readers)]
        with tf.Session() as session:
            for fetch in (*fetches, fetches):
                if said == length:
                    session.run(fetch)
                    continue
                with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\[{said}\].*got.*\[{length}\]"):
                    session.run(fetch)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("made", MADE_BY)
def test_of_each_kind(made, mode, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    check(made, ["add"], 1, 3)


@given(
    st.sampled_from(MODES),
    st.sampled_from([*MADE_BY]),
    st.lists(st.sampled_from([*READERS]), min_size=1, max_size=2, unique=True),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_random_programs(mode, made, readers, length, said):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWRT_JIT", mode)
        check(made, readers, length, said)


def test_values_are_those_of_the_shape_that_is_right():
    y = fed(3)
    y.set_shape([3])
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(y * 2.0 + tf.ones([3])), [1, 3, 5])
        np.testing.assert_array_equal(session.run(y, {y: [1, 1, 1]}), [1, 1, 1])
        with pytest.raises(ValueError, match="shape"):
            session.run(y + 1.0, {y: [1, 1]})


def test_each_step_is_checked_in_the_dimensions_that_are_set():
    rows = [np.zeros((1, 3), np.float32)]
    y = tf.py_func(lambda: rows[0], [], tf.float32)
    y.set_shape([2, None])
    with tf.Session() as session:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"PyFunc/set_shape.*\[2, .*\]; got \[1, 3\]"
        ):
            session.run(y)
        rows[0] = np.zeros((2, 4), np.float32)
        assert session.run(y).shape == (2, 4)


@pytest.mark.parametrize("times", [0, 2])
def test_a_loop_has_the_shape_of_its_invariant_whatever_its_body_sets(times):
    def body(i, v):
        v.set_shape([2])
        return i + 1, v * 2.0

    invariants = [tf.TensorShape([]), tf.TensorShape([None])]
    start, times_fed = tf.placeholder_with_default([1.0], [None]), tf.placeholder_with_default(times, [])
    last = tf.while_loop(lambda i, _: i < times_fed, body, [0, start], invariants)[1]
    assert last.shape.as_list() == [None]
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(last, {start: [1.0, 2.0]}), np.array([1, 2]) * 2**times)
        if not times:
            gradient = tf.gradients(tf.reduce_sum(last * last), start)
            np.testing.assert_array_equal(session.run([last, *gradient]), [[1.0], [2.0]])
            return
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2\]; got \[1\]"):
            session.run(last)


@pytest.mark.parametrize("length", [1, 3])
def test_a_variable_that_is_read_before_a_loop_is_checked_there(length):
    variable = tf.Variable(fed(length), validate_shape=False)

    def body(i, total):
        read = variable.read_value()
        read.set_shape([3])
        return i + 1, total + read

    last = tf.while_loop(lambda i, _: i < 2, body, [0, tf.zeros([3])])[1]
    with tf.Session() as session:
        session.run(variable.initializer)
        if length == 3:
            np.testing.assert_array_equal(session.run(last), [0, 2, 4])
            return
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3\]; got \[1\]"):
            session.run(last)
