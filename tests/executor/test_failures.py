"""A step that fails gives one typed error and leaves the session, its variables and its threads in order."""

from __future__ import annotations

import gc
import signal
import threading
import time

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan import plan

WAYS = ("inline", "threaded", "seeded")


@pytest.fixture(params=WAYS)
def open_session(request, monkeypatch):
    """A function that opens a session on two devices whose programs run in each of the ways."""
    if request.param == "threaded":
        monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    config = tf.ConfigProto(device_count={"CPU": 2})
    return lambda: tf.Session(config=config, seed=7 if request.param == "seeded" else None)


class Failing:
    """Two devices: one fails while the other waits for it; then a write that must not happen."""

    def __init__(self):
        self.fail = True
        with tf.device("/cpu:0"):
            self.before = tf.Variable(1.0)
            self.after = tf.Variable(1.0)
        first = self.before.assign_add(1.0, read_value=False)
        with tf.device("/cpu:1"), tf.control_dependencies([first]):
            self.risky = tf.py_func(self._call, [tf.constant(2.0)], tf.float32, name="risky")
            self.risky.set_shape([])
        with tf.device("/cpu:0"):
            self.step = self.after.assign(self.risky * 10.0, read_value=False)

    def _call(self, x):
        if self.fail:
            raise KeyError("the user's own")
        return x


def test_a_kernels_error_names_the_operation_and_leaves_all_in_order(open_session):
    failing = Failing()
    with open_session() as session:
        session.run(tf.global_variables_initializer())
        for attempt in range(3):
            with pytest.raises(tf.errors.UnknownError) as caught:
                session.run(failing.step)
            assert caught.value.op == "risky"
            assert caught.value.op_type == "PyFunc"
            assert "test_failures.py" in caught.value.source
            assert isinstance(caught.value.__cause__, KeyError)
            assert session.run([failing.before, failing.after]) == [2.0 + attempt, 1.0]
        failing.fail = False
        for _ in range(3):
            session.run(failing.step)
        assert session.run([failing.before, failing.after]) == [7.0, 20.0]
        assert not session._running


def test_errors_of_kernels_are_typed(open_session):
    with tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [None, None], name="x")
    with tf.device("/cpu:1"):
        y = tf.matrix_inverse(x * 1.0)
        z = tf.gather(tf.constant([1.0, 2.0]), tf.cast(x, tf.int32)) + 1
    with open_session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(y, {x: np.zeros((2, 2))})
        assert caught.value.op == y.op.name
        with pytest.raises(tf.errors.InvalidArgumentError, match="index"):
            session.run(z, {x: np.full((1, 1), 5)})
        assert session.run(y, {x: np.eye(2) * 2}).tolist() == [[0.5, 0], [0, 0.5]]


def test_the_first_error_wins_and_the_others_are_its_consequences(open_session):
    def fail(x):
        raise ZeroDivisionError("root")

    with tf.device("/cpu:1"):
        bad = tf.py_func(fail, [tf.constant(1.0)], tf.float32)
    with tf.device("/cpu:0"):
        waits = [tf.identity(bad) + float(i) for i in range(5)]
    with open_session() as session:
        for _ in range(5):
            with pytest.raises(tf.errors.UnknownError, match="root"):
                session.run(waits)


def test_an_uninitialised_variable_is_named_with_the_readers_line(open_session):
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0, 2.0], name="weights")
    read = v * 2.0
    with open_session() as session:
        for attempt in (read, v.assign_add([1.0, 1.0])):
            with pytest.raises(tf.errors.FailedPreconditionError, match="'weights'") as caught:
                session.run(attempt)
            assert "test_failures.py" in caught.value.source
        session.run(v.initializer)
        assert session.run(read).tolist() == [2, 4]


def test_an_update_of_another_shape_changes_nothing(open_session):
    v = tf.Variable([1.0, 2.0])
    x = tf.placeholder(tf.float32)
    updates = [v.assign(x), v.assign_add(x)]
    with open_session() as session:
        session.run(v.initializer)
        for update in updates:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2\].*\[3\]"):
                session.run(update, {x: np.ones(3)})
        assert session.run(v).tolist() == [1, 2]


# --- deadlines, cancellation


def slow_chain(seconds, calls, device="/cpu:0"):
    with tf.device(device):
        x = tf.constant(0.0)
        for _ in range(calls):
            x = tf.py_func(lambda v: time.sleep(seconds) or v, [x], tf.float32)
    return x


def test_a_step_ends_at_its_deadline(open_session):
    counted = tf.Variable(0.0)
    slow = slow_chain(0.1, 300)
    with tf.device("/cpu:1"):
        waits = tf.identity(slow) + 1.0
    with open_session() as session:
        session.run(tf.global_variables_initializer())
        for fetch in (slow, waits):
            start = time.monotonic()
            with pytest.raises(tf.errors.DeadlineExceededError, match="50 ms"):
                session.run(fetch, options=tf.RunOptions(timeout_in_ms=50))
            assert time.monotonic() - start < 15  # of 30
        assert session.run(counted) == 0.0


def test_a_deadline_is_looked_at_between_small_operations():
    x = tf.placeholder(tf.float32, [200_000])
    y = x
    for _ in range(1500):  # one stretch, and some tenths of a second
        y = tf.sin(y)
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(y, {x: np.ones(200_000)}, options=tf.RunOptions(timeout_in_ms=5))
        with tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=5)) as hasty:
            with pytest.raises(tf.errors.DeadlineExceededError):
                hasty.run(y, {x: np.ones(200_000)})
            assert hasty.run(x[:2], {x: np.ones(200_000)}).tolist() == [1, 1]


def test_a_deadline_that_is_kept_changes_nothing(open_session):
    slow = slow_chain(0.001, 3)
    with open_session() as session:
        assert session.run(slow, options=tf.RunOptions(timeout_in_ms=60_000)) == 0.0


def run_in_thread(function):
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 (given to the test)
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_closing_cancels_the_steps_that_run(open_session):
    started = threading.Event()
    begin = tf.py_func(lambda: started.set() or np.float32(0), [], tf.float32)
    with tf.control_dependencies([begin]):
        slow = slow_chain(0.01, 1000)
    with tf.device("/cpu:1"):
        waits = tf.identity(slow) + 1.0
    session = open_session()
    thread, outcome = run_in_thread(lambda: session.run([begin, waits]))
    assert started.wait(30)
    session.close()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], tf.errors.CancelledError)
    assert "closed" in str(outcome[0])


def test_a_closed_session_says_so(open_session):
    x = tf.constant(1.0)
    session = open_session()
    call = session.make_callable(x)
    assert call() == 1.0
    session.close()
    session.close()
    for use in (lambda: session.run(x), call, lambda: session.run(x + 1), lambda: session.make_callable(x)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_ctrl_c_leaves_the_session_usable(open_session, ctrl_c):
    main = threading.main_thread().ident
    v = tf.Variable(0.0)
    interrupting = tf.py_func(
        lambda: signal.pthread_kill(main, signal.SIGINT) or np.float32(0), [], tf.float32
    )
    with tf.control_dependencies([interrupting]):
        slow = slow_chain(0.01, 200)
    with tf.device("/cpu:1"):
        late = v.assign(tf.identity(slow) + 5.0, read_value=False)
    with open_session() as session:
        session.run(v.initializer)
        with pytest.raises(KeyboardInterrupt):
            session.run([interrupting, late])
        assert session.run(v) == 0.0
        assert not session._running


def test_ctrl_c_while_another_device_works_ends_the_step(monkeypatch, ctrl_c):
    monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    main = threading.main_thread().ident
    with tf.device("/cpu:0"):
        quick = tf.constant(1.0) + tf.py_func(lambda: np.float32(1), [], tf.float32)
    calls = []
    with tf.device("/cpu:1"):
        x = tf.py_func(lambda: signal.pthread_kill(main, signal.SIGINT) or np.float32(0), [], tf.float32)
        for _ in range(400):
            x = tf.py_func(lambda v: calls.append(1) or time.sleep(0.01) or v, [x], tf.float32)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run([quick, x])
        made = len(calls)
        time.sleep(0.1)  # in which ten more calls would be made behind the caller's back
        assert len(calls) == made < 400


# --- what is left


def test_no_thread_is_left_by_failures_or_unclosed_sessions(monkeypatch):
    monkeypatch.setattr(plan, "THREADED_COST", 0.0)
    before = set(threading.enumerate())
    for closes in (True, False):
        with tf.Graph().as_default():
            failing = Failing()
            session = tf.Session(config=tf.ConfigProto(device_count={"CPU": 2}))
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                with pytest.raises(tf.errors.UnknownError):
                    session.run(failing.step)
            failing.fail = False
            session.run(failing.step)
            if closes:
                session.close()
        del failing, session
    gc.collect()
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
