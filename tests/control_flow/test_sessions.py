"""Control flow and the rest of a session: errors, deadlines, threads, callables, traces, savers."""

from __future__ import annotations

import _thread
import threading
import time

import numpy as np
import pytest

import flowrt as tf
from tests.control_flow.counting import counted
from tests.executor.test_program import bind

SOON_S = 30.0
"""A loop that is stopped, after 0.1 s on an idle machine, has been stopped after this on any."""


def endless(body=lambda i: i + 1):
    return tf.while_loop(lambda i: True, body, [tf.constant(0)])


def power(x, count=3):
    return tf.while_loop(lambda i, _: i < count, lambda i, y: (i + 1, y * x), [0, x])[1]


# --- errors


def test_an_error_in_a_body_names_the_operation_and_the_line(session):
    x = tf.placeholder(tf.float32, [3])
    n = tf.placeholder(tf.int32, [])
    y = tf.while_loop(
        lambda i, _: i < n, lambda i, y: (i + 1, tf.gather(x, i, name="pick")), [0, 0.0], name="loop"
    )[1]
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"loop/pick.*test_sessions\.py") as caught:
            session.run(y, {x: [1, 2, 3], n: 4})
        assert caught.value.op.endswith("loop/pick")
        assert session.run(y, {x: [1, 2, 3], n: 3}) == 3


def test_an_assertion_in_a_body_and_in_a_branch(session):
    n = tf.placeholder(tf.int32, [])

    def body(i):
        with tf.control_dependencies([tf.Assert(i < 4, ["too far", i])]):
            return i + 1

    loop = tf.while_loop(lambda i: i < n, body, [tf.constant(0)])

    def branch():
        with tf.control_dependencies([tf.Assert(n < 2, ["too large", n])]):
            return n * 2

    y = tf.cond(n > 0, branch, lambda: n)
    assert session.run(loop, {n: 4}) == 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="too far"):
        session.run(loop, {n: 5})
    assert session.run([loop, y], {n: 1}) == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        session.run(y, {n: 2})
    assert session.run(y, {n: -5}) == -5  # the assertion is in the other branch


def test_what_a_python_function_in_a_body_raises(session):
    def fail(i):
        if i == 2:
            raise OSError("disk")
        return i

    n = tf.while_loop(
        lambda i: i < 5, lambda i: tf.ensure_shape(tf.py_func(fail, [i], tf.int32), []) + 1, [tf.constant(0)]
    )
    with pytest.raises(tf.errors.OpError, match="disk") as caught:
        session.run(n)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_write_before_an_error_stays_and_one_after_it_does_not_happen(session):
    v = tf.Variable([0.0, 0.0, 0.0])
    data = tf.constant([1.0, 2.0])

    def body(i):
        with tf.control_dependencies([v.assign_add(tf.fill([3], tf.gather(data, i)))]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    session.run(v.initializer)
    with pytest.raises(tf.errors.InvalidArgumentError):
        session.run(loop)
    np.testing.assert_array_equal(session.run(v), [3, 3, 3])


def test_print_in_a_body(session, capfd):
    n = tf.while_loop(lambda i: i < 3, lambda i: tf.Print(i, [i], "at ") + 1, [tf.constant(0)])
    session.run(n)
    assert capfd.readouterr().err.split("\n")[:3] == ["at [0]", "at [1]", "at [2]"]


# --- ending a loop from outside


def stopped_within(seconds, run):
    """``run()`` ends by an error ``seconds`` from now on, which is returned."""
    start = time.monotonic()
    with pytest.raises(BaseException) as caught:  # noqa: PT011  (the caller looks at it)
        run()
    assert seconds <= time.monotonic() - start < seconds + SOON_S
    return caught.value


class Begun(list):
    """A list that sets an event when something is added; it stays empty."""

    def __init__(self, event):
        super().__init__()
        self._event = event

    def append(self, _):
        self._event.set()


BODIES = {
    "small": lambda i: i + 1,
    "branch": lambda i: tf.cond(i % 2 < 1, lambda: i + 1, lambda: i + 3),
    "loop": lambda i: tf.while_loop(lambda j: j < i + 3, lambda j: j + 1, [i]),
    "work": lambda i: (
        i + tf.cast(0.0 * tf.reduce_sum(tf.exp(tf.ones([300, 300]) * tf.to_float(i))), tf.int32)
    ),
    "host": lambda i: counted(i, []) + 1,
    "nested endless": lambda i: endless(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_deadline_ends_an_endless_loop(session, body):
    n = endless(body)
    options = tf.RunOptions(timeout_in_ms=100)
    error = stopped_within(0.1, lambda: session.run(n, options=options))
    assert isinstance(error, tf.errors.DeadlineExceededError)
    assert session.run(power(tf.constant(2.0))) == 16


def test_a_deadline_of_the_session(monkeypatch):
    n = endless()
    with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=100)) as session:
        error = stopped_within(0.1, lambda: session.run(n))
        assert isinstance(error, tf.errors.DeadlineExceededError)


def test_closing_the_session_from_another_thread_ends_an_endless_loop():
    began = threading.Event()
    n = endless(lambda i: counted(i, Begun(began)) + 1)
    with tf.Session() as session:
        closer = threading.Thread(target=lambda: (began.wait(SOON_S), session.close()))
        closer.start()
        error = stopped_within(0.0, lambda: session.run(n))
        closer.join()
    assert isinstance(error, tf.errors.CancelledError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a dropped interrupt
def test_control_c_ends_an_endless_loop():
    began, ended = threading.Event(), threading.Event()
    n = endless(lambda i: counted(i, Begun(began)) + 1)

    def interrupt():
        began.wait(SOON_S)
        while not ended.is_set():
            _thread.interrupt_main()
            ended.wait(5)  # Python drops an interrupt that comes in a `__del__`: then one presses again

    with tf.Session() as session:
        killer = threading.Thread(target=interrupt)
        killer.start()
        try:
            error = stopped_within(0.0, lambda: session.run(n))
        finally:
            ended.set()
        killer.join()
        assert isinstance(error, KeyboardInterrupt)
        assert session.run(power(tf.constant(2.0))) == 16


# --- many at once


def test_one_loop_in_many_threads(session):
    x = tf.placeholder(tf.float64, [50])
    n = tf.placeholder(tf.int32, [])
    y = tf.while_loop(
        lambda i, _: i < n, lambda i, y: (i + 1, tf.cond(i % 2 < 1, lambda: y + x, lambda: y * 1.5)), [0, x]
    )[1]

    def expected(data, count):
        found = data
        for i in range(count):
            found = found + data if i % 2 < 1 else found * 1.5
        return found

    barrier, errors = threading.Barrier(6), []

    def work(number):
        try:
            barrier.wait(30)
            for count in range(20):
                data = np.full(50, number + 0.5)
                np.testing.assert_array_equal(session.run(y, {x: data, n: count}), expected(data, count))
        except BaseException as error:  # noqa: BLE001 (given to the test)
            errors.append(error)

    threads = [threading.Thread(target=work, args=[i]) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_a_counter_in_many_threads(session):
    v = tf.Variable(0)

    def body(i):
        with tf.control_dependencies([v.assign_add(1)]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 50, body, [tf.constant(0)])
    session.run(v.initializer)
    threads = [threading.Thread(target=session.run, args=[loop]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.run(v) == 250


# --- other ways to run


def test_a_callable(session):
    x = tf.placeholder(tf.float32, [])
    run = session.make_callable(power(x), [x])
    assert [run(v) for v in (1.0, 2.0, 3.0)] == [1, 16, 81]


def test_a_partial_run():
    x, z = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    y = power(x)
    w = tf.cond(y > z, lambda: y + z, lambda: y - z)
    with tf.Session() as session:
        step = session.partial_run_setup([y, w], [x, z])
        first = session.partial_run(step, y, {x: 2.0})
        assert first == 16
        assert session.partial_run(step, w, {z: first + 1}) == -1


def test_a_traced_run_gives_the_values_and_every_iteration(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "off")  # a compiled loop has no iterations to show
    x = tf.placeholder(tf.float32, [])
    y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.multiply(y, x, name="times")), [0, x])[1]
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Session() as session:
        assert session.run(y, {x: 2.0}, options, metadata) == 16
    names = [n.node_name for d in metadata.step_stats.dev_stats for n in d.node_stats]
    assert sum("times" in name for name in names) == 3
    assert len(metadata.partition_graphs) == 1


def test_the_text_of_a_program_shows_what_is_inside():
    x = tf.placeholder(tf.float32, [], name="x")
    y = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, y: (i + 1, tf.cond(y > 4.0, lambda: y * x, lambda: y - x, name="branch")),
        [0, x],
        name="loop",
    )[1]
    depths = {}
    for line in str(bind([y], [x])).splitlines()[1:]:
        indent, name = len(line) - len(line.lstrip()), line.partition("# ")[2].split()[0]
        depths[name] = (indent - 2) // 4
        assert "test_sessions.py:" in line
    assert depths["loop"] == 0
    assert depths["loop/branch"] == 1
    assert depths["loop/branch/mul"] == depths["loop/branch/sub"] == 2


def test_a_saver_and_variables_that_a_loop_reads(tmp_path):
    v = tf.get_variable("v", initializer=3.0)
    y = power(v)
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(v.assign(2.0))
        path = saver.save(session, str(tmp_path / "model"))
    with tf.Session() as session:
        saver.restore(session, path)
        assert session.run(y) == 16


def test_a_session_handle_goes_through_a_loop(session):
    x = tf.placeholder(tf.float32, [])
    handle = session.run(tf.get_session_handle(power(x)), {x: 2.0})
    holder, value = tf.get_session_tensor(handle.handle, tf.float32)
    assert session.run(power(value, 1), {holder: handle.handle}) == 256
