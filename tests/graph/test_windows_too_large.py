"""A VALID window larger than its input is an error where it is built, or at run time for unknown sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


TOO_LARGE: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "conv1d": ((1, 3, 2), lambda x: tf.nn.conv1d(x, ones(4, 2, 3), 1, "VALID")),
    "conv2d": ((1, 5, 3, 2), lambda x: tf.nn.conv2d(x, ones(4, 4, 2, 3), [1, 1, 1, 1], "VALID")),
    "conv2d, strided": ((1, 5, 3, 2), lambda x: tf.nn.conv2d(x, ones(4, 4, 2, 3), [1, 4, 4, 1], "VALID")),
    "conv2d, dilated": (
        (1, 5, 4, 2),
        lambda x: tf.nn.conv2d(x, ones(3, 3, 2, 3), [1, 1, 1, 1], "VALID", dilations=[1, 2, 2, 1]),
    ),
    "conv3d": ((1, 3, 9, 9, 2), lambda x: tf.nn.conv3d(x, ones(4, 2, 2, 2, 3), [1] * 5, "VALID")),
    "depthwise": ((1, 3, 3, 2), lambda x: tf.nn.depthwise_conv2d(x, ones(4, 4, 2, 1), [1] * 4, "VALID")),
    "max_pool": ((1, 3, 3, 2), lambda x: tf.nn.max_pool(x, [1, 4, 4, 1], [1, 3, 3, 1], "VALID")),
    "avg_pool": ((1, 3, 3, 2), lambda x: tf.nn.avg_pool(x, [1, 4, 4, 1], [1, 1, 1, 1], "VALID")),
    "max_pool3d": ((1, 3, 3, 3, 2), lambda x: tf.nn.max_pool3d(x, [1, 4, 4, 4, 1], [1] * 5, "VALID")),
    "patches": ((1, 3, 3, 2), lambda x: tf.extract_image_patches(x, [1, 4, 4, 1], [1] * 4, [1] * 4, "VALID")),
    "layers.conv2d": ((1, 3, 3, 2), lambda x: tf.layers.conv2d(x, 3, 4, use_bias=False)),
}
every_window = pytest.mark.parametrize(("shape", "build"), TOO_LARGE.values(), ids=TOO_LARGE)
REFUSED = r"test_windows_too_large.py:\d+\): Negative dimension size caused by subtracting \d from \d"


@every_window
def test_it_is_refused_where_it_is_built(shape: tuple[int, ...], build: Callable[[Any], Any]) -> None:
    x = tf.placeholder(tf.float32, shape)
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        build(x)


@every_window
def test_it_is_refused_where_it_runs(shape: tuple[int, ...], build: Callable[[Any], Any]) -> None:
    x = tf.placeholder(tf.float32, [None] * (len(shape) - 1) + [shape[-1]])
    y = build(x)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
            session.run(y, {x: ones(*shape)})


def test_a_window_as_large_as_its_input_and_a_batch_of_none_are_fine() -> None:
    for rows in (1, 0):
        y = tf.nn.max_pool(ones(rows, 3, 3, 2), [1, 3, 3, 1], [1, 1, 1, 1], "VALID")
        assert tf.Session().run(y).shape == (rows, 1, 1, 2)
