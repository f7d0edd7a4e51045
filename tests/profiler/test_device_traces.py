"""Traces of devices that work by themselves: a pretended GPU, whose streams are as late as they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor import streams as schedule
from flowrt.executor.recent_steps import keep_recent_steps
from flowrt.profiler import Timeline, recent_step_stats
from flowrt.profiler.steps import read_step
from tests.executor.test_remote_device import config, network, plug_in
from tests.profiler.chrome_trace import named, read_trace

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def trained(session: tf.Session, options: Any = None) -> tuple[Any, Any]:
    """The loss of a step, and its trace."""
    x, y, loss, step = network("/gpu:0")
    metadata = tf.RunMetadata()
    session.run(tf.global_variables_initializer())
    feeds = {x: np.ones((8, 6)), y: np.ones((8, 1))}
    return session.run([loss, step], feeds, options, metadata)[0], metadata.step_stats


@pytest.mark.parametrize("streams", [1, 3])
def test_a_stream_of_a_gpu_is_a_track_and_a_node_lasts_until_the_device_is_done(
    monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setattr(schedule, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", -1e9)
    cupy = plug_in(monkeypatch, 0)
    with tf.Graph().as_default(), tf.Session(config=config(streams)) as session:
        plain, _ = trained(session)
    with tf.Graph().as_default(), tf.Session(config=config(streams)) as session:
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        traced, stats = trained(session, options)
    assert traced == plain
    assert cupy is not None
    on_gpu = [op for op in read_step(stats).operations if op.device == GPU]
    assert len({op.stream for op in on_gpu}) == streams
    assert {"MatMul", "Tanh"} <= {op.op.partition("[")[0] for op in on_gpu}
    ordered = sorted(on_gpu, key=lambda op: op.start)
    assert all(one.end <= other.start for one, other in zip(ordered, ordered[1:], strict=False))
    events = read_trace(Timeline(stats).generate_chrome_trace_format(show_memory=True))
    assert sum(name.startswith("GPU:0") for name in named(events, "thread_name").values()) == streams


def test_a_receive_waits_and_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, 0)
    with tf.Graph().as_default(), tf.Session(config=config()) as session:
        with tf.device("/cpu:0"):
            x = tf.random_uniform([100, 100])
        with tf.device("/gpu:0"):
            y = tf.sqrt(x)
        metadata = tf.RunMetadata()
        session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    (receive,) = (op for op in read_step(metadata.step_stats).operations if op.is_receive)
    assert receive.device == GPU
    assert receive.start <= receive.done < receive.end


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
