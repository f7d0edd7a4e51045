"""A fetch of a variable itself gives its value at the end of the step; a read keeps its place."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.train import SessionRunArgs, SessionRunHook


@pytest.fixture(params=["off", "eager"])
def jit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JIT", request.param)


@pytest.fixture
def v() -> tf.Variable:
    return tf.Variable([1.0, 2.0], name="v")


def begun(*args: Any, **kwargs: Any) -> tf.Session:
    session = tf.Session(*args, **kwargs)
    session.run(tf.global_variables_initializer())
    return session


def test_it_has_the_value_after_the_update_that_is_fetched_beside_it(jit: None, v: tf.Variable) -> None:
    update = v.assign_add([1.0, 1.0])
    with begun() as session:
        for fetches in ([v, update], [v, update.op], [v, v, update], ["v:0", update]):
            before = session.run(v)
            after = session.run(fetches)[0]
            np.testing.assert_array_equal(after, before + 1)
            np.testing.assert_array_equal(session.run(v), after)


def test_reads_that_the_script_built_keep_their_places(jit: None, v: tf.Variable) -> None:
    before = [v + 0, v.read_value(), tf.identity(v), v.value()]
    update = v.assign(v * 10)
    between = v.read_value()
    again = v.assign_sub([1.0, 1.0])
    with begun() as session:
        *found, middle, end, _ = session.run([*before, between, v, again.op])
        for value in (*found, middle):
            np.testing.assert_array_equal(value, [1, 2])
        np.testing.assert_array_equal(end, [0, 1])
        *found, middle, end, _, _ = session.run([*before, between, v, update.op, again.op])
    for value in found:
        np.testing.assert_array_equal(value, [0, 1])
    np.testing.assert_array_equal(middle, [0, 10])
    np.testing.assert_array_equal(end, [-1, 9])


def test_it_is_so_in_every_structure_of_fetches(v: tf.Variable) -> None:
    pair = namedtuple("pair", ["value", "op"])
    update = v.assign_add([1.0, 1.0]).op
    with begun() as session:
        found = session.run({"a": v, "b": [(v, update)], "c": pair(v, update)})
        np.testing.assert_array_equal(found["a"], [2, 3])
        np.testing.assert_array_equal(found["b"][0][0], [2, 3])
        np.testing.assert_array_equal(found["c"].value, [2, 3])
        call = session.make_callable([v, update])
        np.testing.assert_array_equal(call()[0], [3, 4])
        np.testing.assert_array_equal(call()[0], [4, 5])


def test_after_training_it_is_what_was_trained() -> None:
    w = tf.Variable(4.0)
    train = tf.train.GradientDescentOptimizer(0.25).minimize(w * w)
    with begun() as session:
        assert [session.run([train, w])[1] for _ in range(3)] == [2.0, 1.0, 0.5]


def test_a_loop_and_a_branch_that_write_it_come_before(jit: None, v: tf.Variable) -> None:
    def body(i: Any) -> Any:
        with tf.control_dependencies([v.assign_add([1.0, 2.0])]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 3, body, [0])
    pred = tf.placeholder(tf.bool, [])
    branch = tf.cond(pred, lambda: v.assign([7.0, 7.0]), lambda: tf.identity(v))
    with begun() as session:
        np.testing.assert_array_equal(session.run([v, loop])[0], [4, 8])
        np.testing.assert_array_equal(session.run([v, branch], {pred: False})[0], [4, 8])
        np.testing.assert_array_equal(session.run([v, branch], {pred: True})[0], [7, 7])
        np.testing.assert_array_equal(session.run([branch, v, loop], {pred: True})[1], [7, 7])


def test_an_update_on_another_device_comes_before() -> None:
    with tf.device("/cpu:0"):
        v = tf.Variable([1.0, 2.0])
    with tf.device("/cpu:1"):
        u = tf.Variable([3.0, 4.0])
        doubled = u * 2.0
    both = tf.group(v.assign_add(doubled), u.assign_sub(v))
    with begun(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        first, second, _ = session.run([v, u, both])
        np.testing.assert_array_equal(first, [7, 10])
        np.testing.assert_array_equal(second, [-4, -6])


def test_a_step_of_one_session_is_none_of_another(v: tf.Variable) -> None:
    update = v.assign_add([1.0, 1.0]).op
    with begun() as one, begun() as other:
        np.testing.assert_array_equal(one.run([v, update])[0], [2, 3])
        np.testing.assert_array_equal(other.run(v), [1, 2])
        np.testing.assert_array_equal(other.run([update, v])[1], [2, 3])


def test_a_call_of_a_partial_run_gives_the_value_at_its_end(v: tf.Variable) -> None:
    x = tf.placeholder(tf.float32, [2])
    update = v.assign_add(x).op
    with begun() as session:
        handle = session.partial_run_setup([v, update], [x])
        np.testing.assert_array_equal(session.partial_run(handle, [v, update], {x: [1.0, 1.0]})[0], [2, 3])


def test_an_operation_with_a_place_in_the_order_gives_it_one(v: tf.Variable) -> None:
    """The write waits for the variable's read, which can wait for no write then."""
    with tf.control_dependencies([v]):
        update = v.assign_add([1.0, 1.0])
    with begun() as session:
        np.testing.assert_array_equal(session.run([v, update]), [[1, 2], [2, 3]])


def test_a_hook_of_a_monitored_session_gets_the_step_that_was_counted() -> None:
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.25).minimize(tf.Variable(1.0) ** 2, step)
    seen = []

    class Watch(SessionRunHook):
        def before_run(self, run_context: Any) -> SessionRunArgs:
            return SessionRunArgs(step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(int(run_values.results))

    with tf.train.MonitoredTrainingSession(hooks=[Watch()]) as session:
        for _ in range(3):
            session.run(train)
    assert seen == [1, 2, 3]


def test_a_mirrored_variable_has_the_value_after_the_update() -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        v = tf.Variable(1.0)
    update = strategy.experimental_run_v2(
        lambda: tf.train.GradientDescentOptimizer(0.5).minimize(lambda: v * 1.0)
    )
    with begun(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        assert session.run([v, update])[0] == 0.0


def test_it_is_so_in_a_cluster() -> None:
    server = tf.train.Server.create_local_server()
    v = tf.Variable([1.0, 2.0])
    update = v.assign_add([1.0, 1.0]).op
    with begun(server.target) as session:
        np.testing.assert_array_equal(session.run([v, update])[0], [2, 3])
        np.testing.assert_array_equal(session.run([update, v])[1], [3, 4])
    server.stop()
