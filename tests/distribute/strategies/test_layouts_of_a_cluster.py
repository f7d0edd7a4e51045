"""Layouts over the devices of a cluster's tasks, through the master of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net, trained
from tests.each import nightly

STEPS = 5


@pytest.fixture
def target() -> Iterator[str]:
    """Two workers of two CPUs each."""
    config = tf.ConfigProto(device_count={"CPU": 2})
    with ReservedPorts(2) as reserved:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        servers = [tf.train.Server(spec, "worker", index, config=config) for index in range(2)]
        yield servers[0].target
        for server in servers:
            server.stop()


@pytest.mark.parametrize("net", nightly(["gpt", "mlp", "embedding", "lstm"], 1))
def test_training_on_a_cluster_is_that_of_one_device(target: str, net: str) -> None:
    mesh = tf.distribute.Mesh([("dp", 2), ("tp", 2)])
    layouts: Any = of_net(NETS[net], COLUMNS)
    losses, variables = trained(NETS[net], mesh, "dp", layouts, STEPS, target)
    expected, expected_variables = trained(NETS[net], steps=STEPS)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)


@pytest.mark.parametrize(
    ("axes", "axis"),
    [
        pytest.param([("dp", 4)], "dp", marks=pytest.mark.slow),
        ([("replica", 2), ("shard", 2)], ("replica", "shard")),
        pytest.param([("tp", 2), ("dp", 2)], "dp", marks=pytest.mark.slow),
    ],
)
def test_units_are_gathered_on_a_cluster(target: str, axes: list[Any], axis: Any) -> None:
    """Where a unit is gathered by operations of the tasks, each of its variables by its own."""
    strategy = tf.distribute.FullyShardedStrategy(
        tf.distribute.Mesh(axes), axis, units=r"block\d|\w+", min_bytes=0
    )
    strategy.variable_layouts(of_net(NETS["gpt"], COLUMNS) if "tp" in dict(axes) else {})
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        with strategy.scope():
            built = NETS["gpt"]()
        with tf.Session(target, graph=graph) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([built.loss, built.train], built.feeds)[0] for _ in range(STEPS)]
    np.testing.assert_allclose(losses, trained(NETS["gpt"], steps=STEPS)[0], 1e-12)


def test_checkpoints_of_a_cluster_and_of_one_process_are_each_others(target: str, tmp_path: Path) -> None:
    """A session on a cluster saves and restores through the client."""
    value = np.arange(15.0).reshape(5, 3)

    def session_of(where: str, layout: list[Any]) -> tuple[tf.Session, tf.Variable]:
        tf.reset_default_graph()
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("tp", 3)])).scope():
            w = tf.get_variable("w", initializer=tf.constant(value), layout=layout)
        return tf.Session(where, config=tf.ConfigProto(device_count={"CPU": 3})), w

    ends = [(target, ["tp", None]), ("", [None, "tp"])]
    for (saved, rows), (restored, columns) in (ends, ends[::-1]):
        session, w = session_of(saved, rows)
        with session:
            session.run(w.initializer)
            prefix = tf.train.Saver().save(session, tmp_path / "model")
        session, w = session_of(restored, columns)
        with session:
            tf.train.Saver().restore(session, prefix)
            np.testing.assert_array_equal(session.run(w), value)
