"""`Session.make_callable` and partial runs: other ways to run the same plans."""

from __future__ import annotations

import pytest

import flowrt as tf


@pytest.fixture
def session():
    with tf.Session() as opened:
        yield opened


# --- make_callable


def test_a_callable_takes_its_feeds_in_order(session):
    x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    assert session.make_callable(x - y, [x, y])(5.0, 2.0) == 3.0
    assert session.make_callable(x - y, feed_list=[y.name, x])(5.0, 2.0) == -3.0
    assert session.make_callable({"a": [x, y]}, (x, y))(1, 2) == {"a": [1.0, 2.0]}


def test_a_callable_without_feeds_runs_an_operation(session):
    v = tf.Variable(0.0)
    add = session.make_callable(v.assign_add(1.0, read_value=False))
    session.run(v.initializer)
    assert [add() for _ in range(3)] == [None] * 3
    assert session.run(v) == 3.0


def test_a_callable_takes_options_if_it_was_asked_to(session):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable(x * 2.0, [x], accept_options=True)
    metadata = tf.RunMetadata()
    assert (
        call(2.0, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata) == 4.0
    )
    assert metadata.step_stats.dev_stats
    with pytest.raises(tf.errors.InvalidArgumentError, match="accept_options"):
        session.make_callable(x, [x])(1.0, options=tf.RunOptions())


def test_wrong_uses_of_a_callable_are_typed_errors(session):
    x = tf.placeholder(tf.float32, [2])
    call = session.make_callable(x + 1, [x])
    for values in ((), ([1, 2], [3, 4])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="1 values"):
            call(*values)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        call([1, 2, 3])
    for wrong in (x, 5, [5], [[x]]):
        with pytest.raises(tf.errors.DTypeError):
            session.make_callable(x, wrong)
    for twice in ([x, x], [x, x.name]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="once"):
            session.make_callable(x, twice)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a value"):
        session.make_callable(x + 1)()


def test_a_callable_follows_changes_of_the_graph(session):
    a, b = tf.Variable(1.0), tf.Variable(0.0)
    late = b.assign_add(1.0, read_value=False)
    reading = a.assign_add(1.0, read_value=False)
    session.run(tf.global_variables_initializer())
    call = session.make_callable(reading)
    call()
    reading._add_control_input(late)
    call()
    assert session.run([a, b]) == [3.0, 1.0]


def test_a_callable_outlives_the_cache(session):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable(x + 1, [x])
    assert call(1.0) == 2.0
    for i in range(300):
        session.run(tf.constant(float(i)))
    assert len(session._requests) <= 256
    assert call(2.0) == 3.0


# --- partial runs, of which more in tests/distribute/test_partial_runs.py


def test_operations_run_once_in_the_whole_step(session):
    counter = tf.Variable(0.0)
    x = tf.placeholder(tf.float32, [])
    count = counter.assign_add(1.0, read_value=False)
    calls = []
    noted = tf.py_func(lambda v: calls.append(1) or v, [x], tf.float32)
    with tf.control_dependencies([count]):
        first, second = noted + 1.0, noted * 2.0
    left, right = tf.split(tf.stack([noted, noted * 5.0]), 2)
    session.run(counter.initializer)
    handle = session.partial_run_setup([first, second, left, right, count], [x])
    assert session.partial_run(handle, first, {x: 3.0}) == 4.0
    assert session.partial_run(handle, [second]) == [6.0]
    assert session.partial_run(handle, left).tolist() == [3.0]
    assert session.partial_run(handle, {"r": right, "c": count})["r"].tolist() == [15.0]
    assert session.run(counter) == 1.0
    assert calls == [1]
