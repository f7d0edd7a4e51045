"""Devices that one thread runs: their programs laid end to end give what they give by turns."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan.instance import Instance
from tests.each import nightly
from tests.executor.fused_sessions import plans_of
from tests.executor.random_programs import RandomProgram, assert_same


def cpus(count, **fields):
    return tf.ConfigProto(device_count={"CPU": count}, inter_op_parallelism_threads=1, **fields)


def zigzag(x, hops):
    for i in range(hops):
        with tf.device(f"/cpu:{i % 2}"):
            x = tf.sin(x) + 1.0
    return x


def straight(session):
    return [plan.is_straight for plan in plans_of(session)]


@pytest.fixture
def by_turns(monkeypatch):
    """Nothing is laid end to end."""
    monkeypatch.setattr("flowrt.executor.plan.plan.interleaved", lambda programs: None)


@pytest.fixture
def drives(monkeypatch):
    """How often a step was driven, and did not go the short way."""
    steps = []
    drive = Instance._drive

    def noted(instance, *arguments):
        steps.append(instance)
        drive(instance, *arguments)

    monkeypatch.setattr(Instance, "_drive", noted)
    return steps


def test_a_step_of_several_devices_is_one_stretch(drives):
    x = tf.placeholder(tf.float32, [8])
    y = zigzag(x, 20)
    value = np.linspace(-1, 1, 8, dtype=np.float32)
    expected = value
    for _ in range(20):
        expected = np.sin(expected) + np.float32(1)
    with tf.Session(config=cpus(2)) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run(y, {x: value}), expected)
        assert straight(session) == [True]
    assert drives == []


@pytest.mark.parametrize("seed", nightly(range(30), 10))
def test_random_programs_give_the_same_laid_and_by_turns(seed, request):
    devices = 2 + seed % 3
    program = RandomProgram(7000 + seed, calls=25, devices=devices)

    def steps():
        with tf.Session(graph=program.graph, config=cpus(devices)) as session:
            return [program.run(session) for _ in range(3)], straight(session)

    laid, are_straight = steps()
    request.getfixturevalue("by_turns")
    turns, _ = steps()
    for one, other in zip(laid, turns, strict=True):
        assert_same(one, other)
    assert any(are_straight)


def test_a_loop_across_devices_takes_turns(drives):
    with tf.device("/cpu:0"):
        start = tf.constant(0.0)

    def body(i, total):
        with tf.device("/cpu:1"):
            more = tf.cast(i, tf.float32) * 2.0
        with tf.device("/cpu:0"):
            return i + 1, total + more

    _, total = tf.while_loop(lambda i, _: i < 10, body, [0, start])
    with tf.Session(config=cpus(2)) as session:
        assert session.run(total) == 90
        assert straight(session) == [False]
    assert drives


def test_an_error_names_the_operation_of_the_device_that_raised_it():
    x = tf.placeholder(tf.int32, [2])
    with tf.device("/cpu:1"):
        doubled = x * 2
    with tf.device("/cpu:0"):
        kept = tf.gather([1, 2, 3], doubled, name="picked")
    with tf.Session(config=cpus(2)) as session:
        assert session.run(kept, {x: [0, 1]}).tolist() == [1, 3]
        with pytest.raises(tf.errors.InvalidArgumentError, match="picked"):
            session.run(kept, {x: [0, 5]})
        assert session.run(kept, {x: [1, 0]}).tolist() == [3, 1]
        assert straight(session) == [True]


def test_a_trace_tells_the_devices_apart():
    x = tf.placeholder(tf.float32, [8])
    y = zigzag(x, 6)
    options, traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    with tf.Session(config=cpus(2)) as session:
        session.run(y, {x: np.ones(8)})
        session.run(y, {x: np.ones(8)}, options=options, run_metadata=traced)
    names = {stats.device.rsplit("/", 1)[-1] for stats in traced.step_stats.dev_stats}
    assert {"device:CPU:0", "device:CPU:1"} <= names


@pytest.mark.slow
def test_a_long_step_can_be_ended_between_its_blocks(drives):
    """More instructions than `MAX_BLOCK_LENGTH` are several blocks: the step is driven and checks its end."""
    x = tf.placeholder(tf.float32, [8])
    y = zigzag(x, 4500)
    config = cpus(2, graph_options=tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=-1)))
    with tf.Session(config=config) as session:
        session.run(y, {x: np.ones(8)})
        assert straight(session) == [False]
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(y, {x: np.ones(8)}, options=tf.RunOptions(timeout_in_ms=1))
        assert len(session.run(y, {x: np.ones(8)})) == 8
    assert drives


def test_a_step_of_much_work_takes_turns(drives):
    """It could not be ended for seconds."""
    x = tf.placeholder(tf.float32, [256, 256])
    with tf.device("/cpu:0"):
        y = tf.matmul(x, x)
    with tf.device("/cpu:1"):
        y = tf.matmul(y, x)
    with tf.Session(config=cpus(2)) as session:
        assert session.run(y, {x: np.eye(256)}).trace() == 256
        assert straight(session) == [False]
    assert drives
