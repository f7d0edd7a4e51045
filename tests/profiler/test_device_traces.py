"""Traces of devices that work by themselves: a pretended GPU, whose streams are as late as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.analysis import streams as schedule
from flowrt.executor.observe.recent_steps import keep_recent_steps
from flowrt.profiler import Timeline, recent_step_stats
from flowrt.profiler.steps import read_step
from tests.executor.test_remote_device import config, network, plug_in
from tests.profiler.chrome_trace import named, read_trace

TRACED = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def trained(session: tf.Session, options: Any = None) -> tuple[Any, Any]:
    """The loss of a step, and its trace."""
    x, y, loss, step = network("/gpu:0")
    metadata = tf.RunMetadata()
    session.run(tf.global_variables_initializer())
    feeds = {x: np.ones((8, 6)), y: np.ones((8, 1))}
    return session.run([loss, step], feeds, options, metadata)[0], metadata.step_stats


@pytest.mark.parametrize("streams", [1, 3])
def test_a_stream_of_a_gpu_is_a_track_and_has_the_devices_own_times(
    monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setattr(schedule, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", -1e9)
    plug_in(monkeypatch, 0)
    with tf.Graph().as_default(), tf.Session(config=config(streams)) as session:
        plain, _ = trained(session)
    with tf.Graph().as_default(), tf.Session(config=config(streams)) as session:
        traced, stats = trained(session, TRACED)
    assert traced == plain
    on_gpu = [op for op in read_step(stats).operations if op.device == GPU and not op.is_receive]
    assert len({op.stream for op in on_gpu}) == streams
    assert {"MatMul", "Tanh"} <= {op.op.partition("[")[0] for op in on_gpu}
    events = read_trace(Timeline(stats).generate_chrome_trace_format(show_memory=True))
    assert sum("GPU:0" in name for name in named(events, "thread_name").values()) == streams


def test_a_receive_waits_on_the_host_and_is_copied_on_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, 0)
    with tf.Graph().as_default(), tf.Session(config=config()) as session:
        with tf.device("/cpu:0"):
            x = tf.random_uniform([100, 100])
        with tf.device("/gpu:0"):
            y = tf.sqrt(x)
        metadata = tf.RunMetadata()
        session.run(y, options=TRACED, run_metadata=metadata)
    step = read_step(metadata.step_stats)
    (receive,) = (op for op in step.operations if op.is_receive)
    (copy,) = (op for op in step.operations if op.is_copy)
    names = [step.stream_names[op.device, op.stream] for op in (receive, copy)]
    assert names == ["host", "stream 0"]
    assert copy.edge == receive.edge
    read_trace(Timeline(metadata.step_stats).generate_chrome_trace_format())


def test_a_dry_run_has_the_pretended_devices_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 4000 x 4000 takes the null device milliseconds of its own clock."""
    config = tf.ConfigProto(device_count={"NULL": 1})
    with tf.Graph().as_default(), tf.device("/device:NULL:0"), tf.Session(config=config) as session:
        x = tf.placeholder(tf.float32, [4000, 4000])
        metadata = tf.RunMetadata()
        session.run(tf.matmul(x, x), {x: np.ones((4000, 4000))}, TRACED, metadata)
        executor = session.devices[-1].executor
        called = next(call for call in executor.calls if call.kind == "kernel")
    (product,) = (op for op in read_step(metadata.step_stats).operations if op.op == "MatMul")
    assert product.end - product.start == pytest.approx(called.seconds * 1e9, rel=1e-3)


def test_what_is_kept_of_every_step_are_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, 0)
    keep_recent_steps(5)
    try:
        with tf.Graph().as_default(), tf.Session(config=config()) as session:
            trained(session)
        kept = recent_step_stats()
    finally:
        keep_recent_steps(0)
    events = read_trace(Timeline(kept).generate_chrome_trace_format())
    assert "GPU:0 stream 0, launches" in named(events, "thread_name").values()
