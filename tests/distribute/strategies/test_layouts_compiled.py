"""Layouts with compiled loops, and names of the script that look like those of the lowering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.collectives.cost import DEFAULT_LINKS
from flowrt.graph.layouts.layout import Layout, Partial, Shard
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.layouts.redistribution import plan
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net, trained
from tests.each import daily


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: Any) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "eager")


@pytest.mark.parametrize("net", daily(zip(NETS), lambda net: net in ("cnn", "lstm", "gpt")))
def test_compiled_loops_hold_no_two_ends_of_an_exchange(net: str) -> None:
    """What a device sends is not in one loop with what it computes from the answer: that would hang."""
    mesh = Mesh([("dp", 2), ("tp", 2)])
    losses, _ = trained(NETS[net], mesh, "dp", of_net(NETS[net], COLUMNS), 3)
    expected, _ = trained(NETS[net], steps=3)
    np.testing.assert_allclose(losses, expected, 1e-12)


def test_one_layer_on_four_devices() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("dp", 2), ("tp", 2)]), batch="dp").scope():
            x = tf.placeholder(tf.float64, [2, 4])
            w = tf.get_variable("w", initializer=np.ones((4, 6)), layout=[None, "tp"])
            h = tf.matmul(x, w)
            train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(h))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            session.run(tf.global_variables_initializer())
            found = [session.run([h, train], {x: np.ones((2, 4))})[0] for _ in range(3)]
    np.testing.assert_allclose(found[2], np.full((2, 6), 4 - 2 * 0.1 * 2 * 4))


def test_rows_of_a_variable_with_sharded_columns() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("tp", 2)])).scope():
            w = tf.get_variable("w", initializer=np.arange(18.0).reshape(3, 6), layout=[None, "tp"])
            rows = tf.gather(w, [0, 2, 1]) * 1.0
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(w.initializer)
            np.testing.assert_array_equal(session.run(rows), np.arange(18.0).reshape(3, 6)[[0, 2, 1]])


def test_names_of_the_script_stay_its_own() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("dp", 2)]), batch="dp").scope():
            p = tf.placeholder(tf.float64, [4], name="p")
            other = tf.py_func(lambda: np.float64(7.0), [], tf.float64, name="p/part")
            total = tf.reduce_sum(p * 2.0) + other
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            assert session.run(total, {p: np.arange(4.0)}) == 19


def test_a_sum_over_two_axes_is_not_scattered_unevenly() -> None:
    """12 rows on an axis of 2 are 6, which two more axes of 2 do not divide."""
    mesh = Mesh([("a", 2), ("b", 2), ("c", 2)])
    before = Layout(mesh, [Shard(0), Partial(), Partial()])
    after = Layout(mesh, [Shard(0), Shard(0), Shard(0)])
    steps = plan(before, after, (12, 3), 8, DEFAULT_LINKS.inside)
    assert all(len(step.axes) == 1 for step in steps if step.target == Shard(0))


def test_a_sum_divided_by_zero_is_infinite() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(Mesh([("dp", 2)]), batch="dp").scope():
            p, zero = tf.placeholder(tf.float64, [4]), tf.placeholder(tf.float64, [])
            quotient = tf.reduce_sum(p) / zero
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            assert session.run(quotient, {p: [-9.0, -9.0, 1.0, 1.0], zero: 0.0}) == -np.inf
