"""Memory of pipelines: activations by the marks of the devices' pools, and stages that fit in devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.pipeline.replay import peaks
from flowrt.graph.pipeline.schedules import TABLE

ROWS, COLUMNS = 256, 1024
LARGE = ROWS * COLUMNS * 4
"""Bytes of the tensor that the backward pass of a stage reads, of one micro-batch: 1 MiB."""


def marks(strategy: tf.distribute.PipelineStrategy, m: int) -> list[int]:
    """The most bytes in use of each device's pool, over two training steps.

    A stage copies its input, of one column, `COLUMNS` times, and multiplies that with a variable, whose
    gradient alone reads it again. All other tensors together are a few KiB.
    """
    schedule = strategy.schedule
    config = tf.ConfigProto(device_count={"CPU": schedule.devices})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        with strategy.scope():
            h = x = tf.placeholder(tf.float32, [ROWS * m, 1])
            for index in range(schedule.stages):
                with tf.distribute.stage(index):
                    large = tf.tile(tf.stop_gradient(h), [1, COLUMNS])
                    h += large @ tf.get_variable(f"v{index}", [COLUMNS, 1])
            train = tf.train.GradientDescentOptimizer(1e-4).minimize(tf.reduce_mean(tf.square(h)))
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(train, {x: np.ones([ROWS * m, 1])})
        return [device.pool.stats().peak_bytes_in_use for device in session.devices]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("schedule", TABLE)
def test_marks_of_the_pools_are_the_activations_of_the_table(schedule: str, p: int, m: int) -> None:
    """With v chunks a device has v times as many, each of them a v-th of a device's activations."""
    strategy = tf.distribute.PipelineStrategy(tf.distribute.Mesh([("pp", p)]), "pp", m, schedule)
    v = strategy.schedule.chunks
    expected = {
        "naive": lambda k: 1,
        "gpipe": lambda k: m,
        "1f1b": lambda k: p - k,
        "interleaved": lambda k: 2 * (p - k - 1) + (v - 1) * p + 1,
        "zb_h1": lambda k: p,
        "zb_h2": lambda k: 2 * p - 1,
        "zbv": lambda k: v * p,
    }[schedule]
    found = marks(strategy, m)
    counted = [nbytes // LARGE for nbytes in found]
    assert counted == [min(expected(k), m * v) for k in range(p)], found
    assert counted == [peak * v for peak in peaks(strategy.schedule)]
    assert all(nbytes % LARGE < LARGE / 4 for nbytes in found), found


# --- stages that fit


def losses(strategy: Any, limits_mb: list[int], wide: int = 16384) -> list[float]:
    """Three steps of layers behind two variables of 4 MiB, which take no time to speak of."""
    experimental = tf.ConfigProto.Experimental(cpu_memory_limit_mb=limits_mb)
    config = tf.ConfigProto(device_count={"CPU": len(limits_mb)}, experimental=experimental)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf.set_random_seed(1)
        with strategy.scope():
            h = x = tf.placeholder(tf.float32, [8, 64])
            for name in ("first", "second"):
                table = tf.get_variable(name, [wide, 64], initializer=tf.zeros_initializer())
                h = tf.tanh(h + tf.reduce_sum(table, 0))
            for number in range(6):
                h = tf.layers.dense(h, 64, tf.nn.tanh, name=f"layer{number}")
            loss = tf.reduce_mean(tf.square(h - x))
            train = tf.train.GradientDescentOptimizer(1e-4).minimize(loss)
        session.run(tf.global_variables_initializer())
        feed = {x: np.random.default_rng(0).standard_normal((8, 64))}
        return [float(session.run([loss, train], feed)[0]) for _ in range(3)]


def in_two(memory_limit_mb: float | None) -> tf.distribute.PipelineStrategy:
    mesh = tf.distribute.Mesh([("pp", 2)])
    return tf.distribute.PipelineStrategy(mesh, micro_batches=2, memory_limit_mb=memory_limit_mb)


def test_stages_are_cut_so_that_they_fit_in_the_devices() -> None:
    """By costs alone both variables are at the first stage, which then has no room for their gradients."""
    limits = [13, 13]
    with pytest.raises(ResourceExhaustedError):
        losses(in_two(None), limits)
    expected = losses(tf.distribute.get_strategy(), [0])
    np.testing.assert_allclose(losses(in_two(13), limits), expected, 1e-5)


def test_what_is_short_is_said() -> None:
    message = (
        r"expected stages of at most 6,291,456 bytes each; however it is cut, one needs 8,\d+,\d+: "
        r"stage \d has 8,\d+,\d+ of variables, gradients and states, and [\d,]+ of activations, with "
        r"\d passes in flight"
    )
    with pytest.raises(ResourceExhaustedError, match=message):
        losses(in_two(6), [13, 13])
    for wrong in (0, -1.0, "1", True):
        with pytest.raises(InvalidArgumentError, match="memory_limit_mb: expected MiB of a device, above 0"):
            in_two(wrong)  # type: ignore[arg-type]
