"""Strategies over the devices of a cluster's tasks, one graph and one session: same weights, few messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.observe.flight_recorder import What

D = tf.distribute
DEVICES = [f"/job:worker/task:{task}/cpu:{cpu}" for task in range(2) for cpu in range(2)]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: D.MirroredStrategy(DEVICES),
    "hierarchical": lambda: D.MirroredStrategy(DEVICES, D.HierarchicalCopyAllReduce()),
    "central": lambda: D.experimental.CentralStorageStrategy(DEVICES, DEVICES[0]),
}
STEPS = 6
DEADLINE = tf.RunOptions(timeout_in_ms=60_000)
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 4)), RNG.standard_normal((24, 2))


@pytest.fixture(scope="module")
def servers() -> Iterator[list[tf.train.Server]]:
    config = tf.ConfigProto(device_count={"CPU": 2})
    with ReservedPorts(2) as reserved:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        servers = [tf.train.Server(spec, "worker", index, config=config) for index in range(2)]
        yield servers
        for server in servers:
            server.stop()


def train(strategy: Any, target: str, steps_per_loop: int = 1) -> np.ndarray:
    """The weights after `STEPS` steps."""
    with tf.Graph().as_default():
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.zeros([4, 2], tf.float64))
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        iterator = strategy.make_dataset_iterator(
            tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(12)
        )

        def fn(batch: Any) -> Any:
            x, y = batch
            return optimizer.minimize(tf.reduce_sum(tf.square(tf.tanh(x @ w) - y)) / 12)

        step = strategy.experimental_run(fn, iterator, steps_per_loop)
        with tf.Session(target) as sess:
            sess.run([tf.global_variables_initializer(), iterator.initializer], options=DEADLINE)
            for _ in range(STEPS // steps_per_loop):
                sess.run(step, options=DEADLINE)
            return sess.run(w, options=DEADLINE)


@pytest.mark.parametrize("name", STRATEGIES)
def test_replicas_on_several_tasks_train_the_weights_of_one(servers, name: str) -> None:
    expected = train(D.get_strategy(), "")
    found = train(STRATEGIES[name](), servers[0].target)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_loop_of_steps_is_one_message_a_task(servers) -> None:
    def starts() -> int:
        """How many steps the task that is not the master's has been told to begin."""
        record = servers[1]._observer._recorder.read("task", 0)
        return sum(event.what is What.STARTED for event in record.events)

    weights, counts = [], []
    for steps_per_loop in (1, 3):
        before = starts()
        weights.append(train(D.MirroredStrategy(DEVICES), servers[0].target, steps_per_loop))
        counts.append(starts() - before)
    np.testing.assert_allclose(*weights, rtol=0, atol=1e-12)
    initialization = 1
    assert counts == [initialization + STEPS, initialization + STEPS // 3]
