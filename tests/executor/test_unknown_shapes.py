"""Tensors whose shape is known in part only, or not before the step, cross devices like any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf

PRODUCERS: dict[str, Callable[[], Any]] = {
    "iterator": lambda: (
        tf.data.Dataset.from_tensor_slices(np.ones((7, 5), np.float32))
        .batch(4)
        .make_one_shot_iterator()
        .get_next()
    ),
    "boolean_mask": lambda: tf.boolean_mask(tf.ones([7, 5]), tf.random_uniform([7]) > 0.5),
    "ones": lambda: tf.ones([tf.placeholder_with_default(3, [], name="n"), 5]),
    "where": lambda: tf.cast(tf.where(tf.random_uniform([4, 5]) > 0.5), tf.float32),
    "unique": lambda: tf.unique(tf.constant([3.0, 3.0, 1.0]))[0],
    "py_func": lambda: tf.py_func(lambda: np.ones((2, 5), np.float32), [], tf.float32),
}


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_tensor_of_unknown_size_crosses_devices(name: str, seed: int | None) -> None:
    with tf.Graph():
        tf.set_random_seed(1)
        with tf.device("/cpu:0"):
            x = PRODUCERS[name]()
            if name == "py_func":
                x.set_shape([None, 5])
            here = tf.reduce_sum(tf.nn.relu(x))
        with tf.device("/cpu:1"):
            there = tf.reduce_sum(tf.nn.relu(x) + 1.0) - tf.cast(tf.size(x), tf.float32)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2}), seed=seed) as session:
            for _ in range(2):
                a, b = session.run([here, there])
                assert a == pytest.approx(b)
