"""What is drawn on a GPU is what the CPU draws, in every run: draws are made in host memory and copied."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import Effect, registered_ops
from flowrt.graph.passes.placement.place import supports
from tests.executor.test_remote_device import config, plug_in
from tests.graph.test_all_ops import build, cases, feeds_of, flat_inputs

RUNS = 4
"""The third run of a step that allows it is captured, and the fourth replays it."""

DRAWING = {op.name for op in registered_ops().values() if op.effect is Effect.RANDOM}


def draws_of_ops():
    """The calls that a GPU may get, with seeds, of the ops that draw and of those that draw once more."""
    for case in cases():
        op, sample = case.values
        if op.name.removesuffix("At") in DRAWING:
            seeds = {key: 7 for key in ("seed", "seed2") if key in op.attrs}
            sample = sample._replace(attrs={**sample.attrs, **seeds})
            with tf.Graph().as_default():
                if supports(build(op, sample)[0].node, "GPU"):
                    yield pytest.param(op, sample, id=case.id)


def on_both(monkeypatch, graph):
    """The results of all runs on the CPU and on a pretended GPU. ``graph`` builds, and returns fetches, feeds
    and what is to be run first.
    """
    found = []
    for device in ("/cpu:0", "/gpu:0"):
        plug_in(monkeypatch, 0)
        with tf.Graph().as_default(), tf.device(device):
            tf.set_random_seed(5)
            fetches, feeds, first = graph()
            with tf.Session(config=config()) as session:
                session.run(first)
                found.append([session.run(fetches, feeds) for _ in range(RUNS)])
    return found


@pytest.mark.parametrize(("op", "sample"), list(draws_of_ops()))
def test_every_op_draws_the_same(monkeypatch, op, sample):
    def graph():
        operation, flat = build(op, sample)
        return list(operation.outputs), feeds_of(flat, flat_inputs(op, sample)), []

    expected, drawn = on_both(monkeypatch, graph)
    for runs in zip(expected, drawn, strict=True):
        for one, other in zip(*runs, strict=True):
            np.testing.assert_array_equal(other, one)
            assert other.dtype == one.dtype


@pytest.mark.parametrize(
    "initializer",
    [
        tf.random_uniform_initializer(-2.0, 3.0),
        tf.random_normal_initializer(1.0, 0.5),
        tf.truncated_normal_initializer(),
        tf.glorot_uniform_initializer(),
        tf.glorot_normal_initializer(),
        tf.variance_scaling_initializer(2.0, "fan_out", "uniform"),
        tf.uniform_unit_scaling_initializer(),
        tf.orthogonal_initializer(),
        tf.zeros_initializer(),
        tf.constant_initializer(np.arange(12.0)),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
def test_initializers_give_the_same(monkeypatch, initializer):
    def graph():
        weights = tf.get_variable("weights", [4, 3], initializer=initializer)
        return weights, {}, weights.initializer

    expected, found = on_both(monkeypatch, graph)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=3e-7)  # a loop rounds u * 5 - 2 once


def test_dropout_and_its_gradient_are_the_same(monkeypatch):
    def graph():
        x = tf.ones([6, 5])
        y = tf.nn.dropout(x, rate=0.4)
        return [y, *tf.gradients(y, x)], {}, []

    expected, found = on_both(monkeypatch, graph)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len({np.asarray(run).tobytes() for run in found}) == RUNS
