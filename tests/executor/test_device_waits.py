"""A step that waits for a device ends at its deadline, though the device does not get on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import transfer
from flowrt.device.deadline import deadline, finish
from flowrt.device.host.host import HostExecutor
from tests.executor.test_gpu_feeds import Exported
from tests.executor.test_remote_device import config, machine  # noqa: F401 (a fixture)

SOON = tf.RunOptions(timeout_in_ms=100)
IN_TIME = tf.RunOptions(timeout_in_ms=30_000)
ONES = np.ones(3, np.float32)


@pytest.fixture
def square():
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [3])
        return x, x * x


def check_late(run):
    start = time.monotonic()
    with pytest.raises(tf.errors.DeadlineExceededError, match="expected its work to be done within"):
        run()
    assert time.monotonic() - start < 30.0


def test_a_fetch_meets_the_deadline_and_the_next_step_is_right(machine, square):  # noqa: F811
    x, y = square
    with tf.Session(config=config()) as session:
        session.run(y, {x: ONES})
        for fetch in (y, tf.get_session_handle(y)):
            machine.is_blocked = True
            check_late(lambda: session.run(fetch, {x: 2 * ONES}, options=SOON))  # noqa: B023
            machine.is_blocked = False
            assert session.run(y, {x: 3 * ONES}, options=IN_TIME).tolist() == [9.0] * 3


def test_the_sessions_own_timeout_counts_too(machine, square):  # noqa: F811
    x, y = square
    where = config()
    where.operation_timeout_in_ms = 100
    with tf.Session(config=where) as session:
        machine.is_blocked = True
        check_late(lambda: session.run(y, {x: ONES}))
        machine.is_blocked = False
        assert session.run(y, {x: 2 * ONES}).tolist() == [4.0] * 3


def test_a_feed_that_finds_no_room_meets_the_deadline(machine, monkeypatch):  # noqa: F811
    monkeypatch.setattr(transfer, "MAX_STAGED", 2)
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [3])
        total = tf.Variable(np.zeros(3, np.float32))
        add = total.assign_add(x, read_value=False)
    with tf.Session(config=config()) as session:
        session.run(total.initializer)
        session.run(add, {x: ONES})
        assert session.run(total).tolist() == [1.0] * 3
        machine.is_blocked = True
        for _ in range(2):
            session.run(add, {x: ONES}, options=IN_TIME)
        check_late(lambda: session.run(add, {x: ONES}, options=SOON))
        machine.is_blocked = False
        assert session.run(total).tolist() == [3.0] * 3


def test_a_tensor_that_another_device_sends_meets_the_deadline(machine, monkeypatch):  # noqa: F811
    monkeypatch.setattr(transfer, "MAX_STAGED", 2)
    with tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [3])
        sent = x * x
    with tf.device("/gpu:0"):
        total = tf.Variable(np.zeros(3, np.float32))
        add = total.assign_add(sent, read_value=False)
    with tf.Session(config=config()) as session:
        session.run(total.initializer)
        session.run(add, {x: ONES})
        assert session.run(total).tolist() == [1.0] * 3
        machine.is_blocked = True
        for _ in range(2):
            session.run(add, {x: ONES}, options=IN_TIME)
        check_late(lambda: session.run(add, {x: ONES}, options=SOON))
        machine.is_blocked = False
        assert session.run(total).tolist() == [3.0] * 3


def test_a_step_meets_its_deadline_beside_one_that_has_none(machine, square, monkeypatch):  # noqa: F811
    waits = threading.Event()

    def wait(stream):
        waits.set()
        finish(stream)

    monkeypatch.setattr(transfer, "MAX_STAGED", 1)
    monkeypatch.setattr(transfer, "finish", wait)
    x, y = square
    with tf.Session(config=config()) as session, ThreadPoolExecutor() as threads:
        session.run(y, {x: ONES})
        machine.is_blocked = True
        session.run(y.op, {x: ONES})
        patient = threads.submit(session.run, y.op, {x: ONES})
        assert waits.wait(30.0)
        late = threads.submit(session.run, y, {x: ONES}, options=SOON)
        try:
            assert isinstance(late.exception(30.0), tf.errors.DeadlineExceededError)
        finally:
            machine.is_blocked = False
        assert patient.result(30.0) is None


def test_a_feed_that_is_lent_meets_the_deadline(machine, square):  # noqa: F811
    x, y = square
    with tf.Session(config=config()) as session:
        session.run(y, {x: ONES})
        array = Exported(machine, 2 * ONES)
        machine.is_blocked = True
        check_late(lambda: session.run(y.op, {x: array}, options=SOON))
        machine.is_blocked = False
        assert session.run(y, {x: array}).tolist() == [4.0] * 3


def test_a_device_that_pretends_is_never_late():
    with tf.device("/device:NULL:0"):
        x = tf.ones([4096, 4096])
        for _ in range(30):
            x = tf.matmul(x, x)
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        session.run(x, options=tf.RunOptions(timeout_in_ms=20_000))
        session.devices[-1].executor.advance(100.0)
        session.run(x, options=tf.RunOptions(timeout_in_ms=20_000))


def test_a_deadline_is_its_threads_and_its_contexts():
    host = HostExecutor("threads")
    stream, gate = host.create_stream(threaded=True), threading.Event()
    host.launch(stream, gate.wait, 30.0)
    with deadline(0.0):
        with deadline(None):
            waiting = threading.Thread(target=finish, args=(stream,))
            waiting.start()
        with pytest.raises(tf.errors.DeadlineExceededError):
            finish(stream)
    gate.set()
    finish(stream)
    waiting.join(30.0)
    assert not waiting.is_alive()
    host.close()
