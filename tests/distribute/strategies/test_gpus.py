"""Replicas on GPUs, and on the parts of one: pretended ones, whose kernels run late and in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.executor.test_remote_device import config, plug_in

D = tf.distribute
RNG = np.random.default_rng(4)
X, Y = RNG.standard_normal((24, 3)), RNG.standard_normal((24, 2))
GPUS = ["/gpu:0", "/gpu:1"]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: D.MirroredStrategy(GPUS),
    "all-reduce": lambda: D.MirroredStrategy(GPUS, D.AllReduceCrossDeviceOps()),
    "central": lambda: D.experimental.CentralStorageStrategy(GPUS),
    "one": lambda: D.OneDeviceStrategy("/gpu:1"),
}


def trained(strategy: Any, options: Any, steps_per_loop: int) -> Any:
    with tf.Graph().as_default():
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.zeros([3, 2], tf.float64))
            optimizer = tf.train.AdamOptimizer(0.1)
        iterator = strategy.make_dataset_iterator(
            tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(6)
        )

        def fn(batch: Any) -> Any:
            x, y = batch
            return optimizer.minimize(tf.reduce_sum(tf.square(tf.tanh(x @ w) - y)) / 6)

        step = strategy.experimental_run(fn, iterator, steps_per_loop)
        with tf.Session(config=options) as sess:
            sess.run([tf.global_variables_initializer(), iterator.initializer])
            for _ in range(6 // steps_per_loop):
                sess.run(step)
            return sess.run(list(w.copies))


@pytest.mark.parametrize(("name", "steps_per_loop"), [*((name, 1) for name in STRATEGIES), ("mirrored", 3)])
def test_parts_of_one_gpu_train_the_weights_of_the_cpu(monkeypatch, name: str, steps_per_loop: int) -> None:
    (expected,) = trained(D.get_strategy(), None, 1)
    plug_in(monkeypatch, seed=1)
    parts = tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[16, 16])
    for found in trained(STRATEGIES[name](), config(gpus=1, virtual_devices=[parts]), steps_per_loop):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
