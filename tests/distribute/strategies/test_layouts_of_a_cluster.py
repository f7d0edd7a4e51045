"""Layouts over the devices of a cluster's tasks, through the master of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net, trained

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


@pytest.mark.parametrize("net", ["mlp", "embedding", "gpt"])
def test_training_on_a_cluster_is_that_of_one_device(target: str, net: str) -> None:
    mesh = tf.distribute.Mesh([("dp", 2), ("tp", 2)])
    layouts: Any = of_net(NETS[net], COLUMNS)
    losses, variables = trained(NETS[net], mesh, "dp", layouts, STEPS, target)
    expected, expected_variables = trained(NETS[net], steps=STEPS)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)
