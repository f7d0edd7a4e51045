"""Gradients given by hand for functions that are called inside branches and bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf

VALUES = np.array([0.1, 0.7, 1.3])


@tf.custom_gradient
def by_hand(a: Any) -> Any:
    """sin(a) with the gradient sigmoid(a), which the forward computation does not need."""
    kept = tf.sigmoid(a)
    return tf.sin(a), lambda dy: dy * kept


def in_map(x: Any) -> Any:
    return tf.map_fn(by_hand, x)


def in_branch(x: Any) -> Any:
    return tf.cond(x[0] > 0, lambda: by_hand(x), lambda: x)


def in_nested_loop(x: Any) -> Any:
    def outer(i: Any, a: Any) -> Any:
        inner = tf.while_loop(lambda j, _: j < 1, lambda j, b: (j + 1, by_hand(b)), [0, a])
        return i + 1, inner[1]

    return tf.while_loop(lambda i, _: i < 1, outer, [0, x])[1]


@pytest.mark.parametrize("program", [in_map, in_branch, in_nested_loop])
def test_it_reads_what_the_function_made(program: Callable[..., Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(VALUES)
        (first,) = tf.gradients(program(x), x)
        (second,) = tf.gradients(first, x)
        got, again = session.run([first, second])
    sigmoid = 1 / (1 + np.exp(-VALUES))
    np.testing.assert_allclose(got, sigmoid, rtol=1e-12)
    np.testing.assert_allclose(again, sigmoid * (1 - sigmoid), rtol=1e-12)
