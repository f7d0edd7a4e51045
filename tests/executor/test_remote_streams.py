"""The streams of a pretended GPU, which do everything as late and in as odd an order as they may: what is not
ordered by an event, or put on the wrong stream, shows as a wrong result.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import memory_pool, transfer
from flowrt.device.cuda import cuda
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.device.memory_pool import MemoryPool, Owner
from flowrt.executor.analysis import streams as schedule
from flowrt.executor.session import session as session_module
from tests.device import pretend_cupy
from tests.executor.random_programs import RandomProgram, assert_same
from tests.executor.sleeping import sleep_op
from tests.executor.test_remote_device import config, machine, plug_in  # noqa: F401 (a fixture)

WAIT_S = 30.0


@pytest.fixture
def spread(monkeypatch):
    """Every independent node on a stream of its own choice, whether it pays or not."""
    monkeypatch.setattr(schedule, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", -1e9)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("block", range(3))
def test_random_programs(monkeypatch, spread, streams, gpus, block):
    for seed in range(block * 4, block * 4 + 4):
        plug_in(monkeypatch, seed)
        program = RandomProgram(seed, devices=gpus, kind="gpu")
        where = config(streams, gpus=gpus)
        where.allow_soft_placement = True  # calls of Python run on the host
        with tf.Session(graph=program.graph, config=where) as session:
            assert_same(program.run(session), program.expected())


@pytest.mark.parametrize("seed", range(6))
def test_a_value_of_unknown_size_is_read_by_another_stream_before_its_memory_is_used_again(
    monkeypatch, spread, seed
):
    monkeypatch.setattr(session_module, "MAX_SHAPES", 0)  # no plan knows the sizes
    plug_in(monkeypatch, seed)
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [None])
        product = tf.sin(x) * tf.cos(x)
        total = tf.add_n([product, tf.tanh(tf.exp(x) * 1.0)])
    with tf.Session(config=config(2, capture_steps=False)) as session:
        for number in range(3):
            value = np.full(20_000, number, np.float32)
            expected = np.sin(value) * np.cos(value) + np.tanh(np.exp(value))
            np.testing.assert_allclose(session.run(total, {x: value}), expected, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_what_arrives_comes_in_the_order_of_the_stream_that_reads_it(monkeypatch, spread, seed):
    plug_in(monkeypatch, seed)
    x = tf.placeholder(tf.float32, [2000])
    with tf.device("/cpu:0"):
        doubled, tripled = x * 2.0, x * 3.0
    with tf.device("/gpu:0"):
        results = [tf.tanh(doubled), tf.sqrt(tripled)]
    with tf.Session(config=config(2)) as session:
        for number in (1.0, 2.0, 3.0):
            first, second = session.run(results, {x: np.full(2000, number)})
            np.testing.assert_allclose(first, np.tanh(2 * number), rtol=1e-5)
            np.testing.assert_allclose(second, np.sqrt(3 * number), rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_the_host_waits_for_the_stream_that_computes_what_it_asks_for(monkeypatch, spread, seed):
    plug_in(monkeypatch, seed)
    x = tf.placeholder(tf.float32, [2000])
    with tf.device("/gpu:0"):
        longer, shorter = x, x
        for _ in range(14):
            longer = tf.sin(longer)
        for _ in range(5):
            shorter = tf.tanh(shorter)
        axis = tf.cast(tf.round(shorter[0] * 0.0 + 1.0), tf.int32)  # on the second stream
        total = tf.reduce_sum(tf.reshape(x, [50, 40]), axis=axis)
    with tf.Session(config=config(2, capture_steps=False)) as session:
        for number in range(3):
            found, _ = session.run([total, longer], {x: np.full(2000, number)})
            assert found.tolist() == [40.0 * number] * 50


@pytest.mark.parametrize("seed", range(6))
def test_a_loop_waits_for_the_streams_of_its_arguments_and_its_readers_for_it(monkeypatch, spread, seed):
    plug_in(monkeypatch, seed)
    x = tf.placeholder(tf.float32, [64])

    def looped(step, start, factor):
        return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, step(h, factor)), [0, start])[1]

    with tf.device("/gpu:0"):
        a, b = tf.sin(tf.sin(x)), tf.cos(x)
        first, second = looped(tf.multiply, a, b), looped(tf.subtract, b, a)
        results = [first + tf.exp(b), second * a, first - second]
    with tf.Session(config=config(3)) as session:
        for number in range(3):
            value = np.linspace(0, 1 + number, 64, dtype=np.float32)
            a, b = np.sin(np.sin(value)), np.cos(value)
            first, second = a * b**3, b - 3 * a
            expected = [first + np.exp(b), second * a, first - second]
            np.testing.assert_allclose(session.run(results, {x: value}), expected, rtol=1e-4, atol=1e-5)


def test_views_are_fetched_and_sent_in_the_order_of_their_elements(machine):  # noqa: F811
    x = tf.placeholder(tf.float32, [2, 3])
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf.device("/gpu:0"):
        variable = tf.get_variable("v", initializer=value, use_resource=True)
        turned = [tf.transpose(x), tf.transpose(x + 1.0), tf.transpose(variable)]
    with tf.device("/gpu:1"):
        on_second = turned[1] * 2.0
    with tf.device("/cpu:0"):
        on_host = turned[1] * 3.0
    with tf.Session(config=config(gpus=2)) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            found = session.run([*turned, on_second, on_host], {x: value})
            expected = [value.T, value.T + 1, value.T, (value.T + 1) * 2, (value.T + 1) * 3]
            assert all(map(np.array_equal, found, expected))


def test_between_gpus_a_value_does_not_come_to_the_host(machine):  # noqa: F811
    x = tf.placeholder(tf.float32, [1000])
    with tf.device("/gpu:0"):
        first = tf.tanh(x)
    with tf.device("/gpu:1"):
        second = first * 2.0
    with tf.Session(config=config(gpus=2)) as session:
        for number in (0.5, 1.5):
            found = session.run(second, {x: np.full(1000, number)})
            np.testing.assert_allclose(found, 2 * np.tanh(number), rtol=1e-5)
        _, near, far = session.devices
        assert near.transfer.stats.transfers_to_host == 0
        assert far.transfer.stats[4:6] == (2, 8000)


def test_another_threads_work_is_not_captured(machine, monkeypatch):  # noqa: F811
    """An update that comes while a step is captured would be repeated with every launch."""
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [4])
        y = tf.tanh(x) * 2.0
        v = tf.get_variable("v", initializer=np.zeros(4, np.float32), use_resource=True)
        add_one = v.assign_add(np.ones(4, np.float32), read_value=False)
    with tf.Session(config=config()) as session:
        session.run(v.initializer)
        feed = {x: np.ones(4)}
        for _ in range(2):
            session.run(y, feed)
        is_capturing, may_end = threading.Event(), threading.Event()
        begin = pretend_cupy.Stream.end_capture

        def end_capture(stream):
            is_capturing.set()
            assert may_end.wait(WAIT_S)
            return begin(stream)

        monkeypatch.setattr(pretend_cupy.Stream, "end_capture", end_capture)
        capturing = threading.Thread(target=session.run, args=(y, feed))
        capturing.start()
        assert is_capturing.wait(WAIT_S)
        updating = threading.Thread(target=session.run, args=(add_one,))
        updating.start()
        may_end.set()
        capturing.join(WAIT_S)
        updating.join(WAIT_S)
        for _ in range(3):
            session.run(y, feed)
        assert session.run(v).tolist() == [1.0] * 4


def test_nobody_is_alone_beside_another_threads_step():
    (device,) = local_devices(DeviceRequest({"CPU": 0, "GPU": 0, "NULL": 1}))
    is_inside, may_end = threading.Event(), threading.Event()

    def run():
        with device.step():
            is_inside.set()
            assert may_end.wait(WAIT_S)

    other = threading.Thread(target=run)
    with device.step(), device.alone() as is_alone:
        assert is_alone
    other.start()
    assert is_inside.wait(WAIT_S)
    with device.step(), device.alone() as is_alone:
        assert not is_alone
    may_end.set()
    other.join(WAIT_S)
    with device.step(), device.step(), device.alone() as is_alone:
        assert is_alone


def test_a_launch_that_is_refused_ends_the_step_and_not_the_device(machine, monkeypatch):  # noqa: F811
    x, ones = tf.placeholder(tf.float32, [4]), np.ones(4)
    with tf.device("/gpu:0"):
        y, other = tf.exp(x) * 2.0, tf.tanh(x)
    with tf.Session(config=config()) as session:
        for _ in range(4):
            session.run(y, {x: ones})
            session.run(other, {x: ones})

        def refuse(graph, stream):
            raise pretend_cupy.CUDARuntimeError(pretend_cupy.OUT_OF_MEMORY)

        with monkeypatch.context() as patch:
            patch.setattr(pretend_cupy.Graph, "launch", refuse)
            with pytest.raises(tf.errors.ResourceExhaustedError):
                session.run(y, {x: ones})
        for _ in range(4):
            np.testing.assert_allclose(session.run(y, {x: ones}), 2 * np.exp(ones), rtol=1e-6)
            np.testing.assert_allclose(session.run(other, {x: ones}), np.tanh(ones), rtol=1e-6)


def test_memory_of_a_failed_stream_goes_to_another_once_the_device_has_left_it(machine, monkeypatch):  # noqa: F811
    monkeypatch.setattr(memory_pool, "STREAM_DEADLINE_S", 0.0)
    executor = cuda.CudaExecutor(0, "gpu")
    pool, owner = MemoryPool(executor, limit_bytes=1 << 16), Owner("test")
    failed, healthy = executor.create_stream("failed"), executor.create_stream("healthy")
    memory = pool.allocate(1 << 16, owner, failed)
    machine.is_blocked = True
    executor.memset(failed, memory, 1)
    failed.fail(ValueError("a callback failed"))
    del memory
    with pytest.raises(tf.errors.ResourceExhaustedError):
        pool.allocate(1 << 16, owner, healthy)
    machine.is_blocked = False
    memory_pool.STREAM_DEADLINE_S = WAIT_S
    assert pool.allocate(1 << 16, owner, healthy)


def test_a_host_that_fetches_nothing_does_not_run_far_ahead(machine, monkeypatch):  # noqa: F811
    monkeypatch.setattr(transfer, "MAX_STAGED", 8)
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/gpu:0"):
        v = tf.get_variable("v", initializer=np.zeros(4, np.float32), use_resource=True)
        step = v.assign_add(x, read_value=False)
    with tf.Session(config=config()) as session:
        session.run(v.initializer)
        manager = session.devices[1].transfer
        for _ in range(50):
            session.run(step, {x: np.ones(4)})
            assert len(manager._in_flight["h2d"]) <= 8
        assert session.run(v).tolist() == [50.0] * 4


def test_a_deadline_leaves_kernels_on_their_streams(spread):
    with sleep_op() as sleep, tf.device("/device:NULL:0"):
        x = tf.placeholder(tf.float32, [4])
        slept = [sleep(x, seconds=0.2), sleep(x + 1.0, seconds=0.2)]
    session_config = tf.ConfigProto(device_count={"NULL": 1}, inter_op_parallelism_threads=2)
    with tf.Session(config=session_config) as session:
        executor = session.devices[-1].executor
        for options in (None, tf.RunOptions(timeout_in_ms=60_000), tf.RunOptions(trace_level=3)):
            start = executor.now_s
            session.run(slept, {x: np.ones(4)}, options=options)
            assert 0.2 <= executor.now_s - start < 0.21


def test_a_value_stays_on_its_gpu_between_steps(machine):  # noqa: F811
    x = tf.placeholder(tf.float32, [1000])
    with tf.device("/gpu:0"):
        kept = tf.get_session_handle(tf.tanh(x))
    with tf.Session(config=config()) as session:
        handle = session.run(kept, {x: np.ones(1000)})
        assert session.devices[1].transfer.stats.transfers_to_host == 0
        assert handle.device.endswith("GPU:0")
        np.testing.assert_allclose(handle.eval(), np.tanh(np.ones(1000)), rtol=1e-6)
