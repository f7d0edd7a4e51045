"""One session, many threads: each step is whole, and the plan cache stays within its bounds."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan import plan
from flowrt.executor.session import session as session_module

THREADS = 8
RUNS = 200


def in_threads(function, count=THREADS):
    """Run ``function(number)`` in threads at once; the results, or the first error."""
    results, errors, barrier = [None] * count, [], threading.Barrier(count)

    def run(number):
        try:
            barrier.wait(30)
            results[number] = function(number)
        except BaseException as error:  # noqa: BLE001 (given to the test)
            errors.append(error)

    threads = [threading.Thread(target=run, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.fixture(params=["inline", "threaded"])
def two_devices(request, monkeypatch):
    if request.param == "threaded":
        monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    return tf.ConfigProto(device_count={"CPU": 2})


def test_the_same_fetch_from_many_threads(two_devices):
    x = tf.placeholder(tf.float32, [3])
    with tf.device("/cpu:0"):
        y = tf.square(x) - 1.0
    with tf.device("/cpu:1"):
        z = tf.exp(-y * y) + y
    with tf.Session(config=two_devices) as session:
        feeds = [np.full(3, i, np.float32) for i in range(THREADS)]
        expected = [session.run(z, {x: f}) for f in feeds]

        def work(number):
            for _ in range(RUNS):
                np.testing.assert_array_equal(session.run(z, {x: feeds[number]}), expected[number])

        in_threads(work)


def test_different_fetches_and_shapes_from_many_threads():
    x = tf.placeholder(tf.float32, [None])
    fetches = [tf.reduce_sum(x * float(i)) for i in range(THREADS)]
    with tf.Session() as session:

        def work(number):
            for i in range(RUNS):
                n = 1 + (i * 7 + number) % 50
                assert session.run(fetches[number], {x: np.ones(n)}) == n * number

        in_threads(work)


def test_concurrent_updates_add_up_exactly(two_devices):
    v, w = tf.Variable(0.0), tf.Variable(np.zeros(1000, np.float32))
    with tf.device("/cpu:1"):
        one = tf.constant(1.0) * 1.0
    update = tf.group(v.assign_add(one), w.assign_add(tf.ones([1000]) * one))
    with tf.Session(config=two_devices) as session:
        session.run(tf.global_variables_initializer())
        in_threads(lambda number: [session.run(update) for _ in range(RUNS)])
        assert session.run(v) == THREADS * RUNS
        assert (session.run(w) == THREADS * RUNS).all()


def test_the_graph_grows_while_steps_run():
    graph = tf.get_default_graph()
    x = tf.placeholder(tf.float32, [])
    y = x * 2.0
    with tf.Session() as session:

        def work(number):
            with graph.as_default():
                for i in range(50):
                    if number % 2:
                        assert session.run(y, {x: i}) == 2 * i
                    else:
                        added = tf.add(x, float(i), name=f"thread_{number}")
                        assert session.run(added, {x: 1.0}) == i + 1

        in_threads(work)
    assert len({op.name for op in graph.get_operations()}) == len(graph.get_operations())


def test_changing_the_graph_while_steps_run_is_noticed_by_all():
    graph = tf.get_default_graph()
    v = tf.Variable(0.0)
    steps = [v.assign_add(1.0, read_value=False) for _ in range(4)]
    with tf.Session() as session:
        session.run(v.initializer)

        def work(number):
            for i in range(50):
                if number == 0 and i % 10 == 0:
                    with graph.as_default():
                        extra = tf.no_op()
                    steps[0]._add_control_input(extra)
                session.run(steps[number])

        in_threads(work, 4)
        assert session.run(v) == 200.0


def test_the_plan_cache_is_bounded_and_evicts_what_was_used_least():
    x = tf.placeholder(tf.float32, [])
    kept = x + 1.0
    with tf.Session() as session:
        for i in range(2 * session_module.MAX_REQUESTS):
            session.run(x * float(i), {x: 1.0})
            assert session.run(kept, {x: 1.0}) == 2.0
        assert len(session._requests) <= session_module.MAX_REQUESTS
        assert any(r.fetches.tensors == (kept,) for r in session._requests.values())


def test_set_shape_and_new_control_inputs_make_plans_stale():
    x = tf.placeholder(tf.float32, None)
    y = x + 1.0
    with tf.Session() as session:
        assert session.run(y, {x: [1, 2, 3]}).tolist() == [2, 3, 4]
        x.set_shape([2])
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            session.run(y, {x: [1, 2, 3]})
        v = tf.Variable(0.0)
        session.run(v.initializer)
        y.op._add_control_input(v.assign_add(1.0, read_value=False))
        session.run(y, {x: [1, 2]})
        assert session.run(v) == 1.0


def test_a_fetched_variable_is_whole_while_others_assign_it():
    size = 300_000
    v = tf.Variable(np.zeros(size, np.float32))
    x = tf.placeholder(tf.float32, [size])
    assign = v.assign(x, read_value=False)
    with tf.Session() as session:
        session.run(v.initializer)
        done = threading.Event()

        def write():
            number = 0
            while not done.is_set():
                number += 1
                session.run(assign, {x: np.full(size, number, np.float32)})

        writer = threading.Thread(target=write)
        writer.start()
        values = [session.run(v) for _ in range(300)]
        done.set()
        writer.join(30)
        assert not writer.is_alive()
    assert all(value.min() == value.max() for value in values)


def test_one_thread_runs_while_another_builds():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        x = tf.placeholder(tf.float32, [])
        graph, ys = x.graph, [x + 1.0]
        for _ in range(3000):
            tf.constant(0.0)

        def build():
            with graph.as_default():
                ys.extend(tf.identity(x) for _ in range(1500))

        builder = threading.Thread(target=build)
        with tf.Session() as session:
            builder.start()
            while builder.is_alive():
                assert session.run(ys[-1], {x: 1.0}) in (1.0, 2.0)
    finally:
        sys.setswitchinterval(interval)


def test_a_forked_child_goes_on_with_the_session(monkeypatch):
    monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/cpu:0"):
        a = tf.exp(x)
    with tf.device("/cpu:1"):
        y = tf.reduce_sum(tf.sin(a))
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        expected = session.run(y, {x: np.ones(4, np.float32)})
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 warns of any fork beside threads
            child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if session.run(y, {x: np.ones(4, np.float32)}) == expected else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_threads_that_set_slices_of_one_variable_lose_nothing():
    v, value = tf.Variable(np.zeros((THREADS, 20_000))), tf.placeholder(tf.float64, [])
    rows, last = [v[i].assign(tf.fill([20_000], value)) for i in range(THREADS)], v[:, -1]

    def set_row(i):
        for step in range(1, 20):
            session.run(rows[i].op, {value: step})
            assert session.run(last)[i] == step

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        in_threads(set_row)
