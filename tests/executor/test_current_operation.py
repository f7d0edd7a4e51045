"""The operation that a step is at, as another thread sees it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import flowrt as tf

SOON_S = 30.0


class Gate:
    """A function of the user's that waits for the test."""

    def __init__(self) -> None:
        self.entered, self.may_go = threading.Event(), threading.Event()

    def __call__(self, x: Any) -> Any:
        self.entered.set()
        assert self.may_go.wait(SOON_S)
        return x


def straight(gate: Gate, x: tf.Tensor) -> tf.Tensor:
    return tf.py_func(gate, [x], tf.float32, name="held")


def loop(gate: Gate, x: tf.Tensor) -> tf.Tensor:
    def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        held = tf.py_func(gate, [y], tf.float32, name="held")
        held.set_shape([])
        return i + 1, held

    return tf.while_loop(lambda i, y: i < 2, body, [0, x], name="loop")[1]


def branch(gate: Gate, x: tf.Tensor) -> tf.Tensor:
    return tf.cond(x > 0.0, lambda: tf.py_func(gate, [x], tf.float32, name="held"), lambda: x, name="branch")


@pytest.mark.parametrize(
    "options",
    [
        None,
        tf.RunOptions(timeout_in_ms=int(1000 * SOON_S)),
        tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
    ],
    ids=["plain", "with a deadline", "traced"],
)
@pytest.mark.parametrize("build", [straight, loop, branch])
def test_the_operation_that_a_step_is_at(build: Any, options: Any) -> None:
    gate = Gate()
    with tf.Graph(), ThreadPoolExecutor(1) as pool:
        y = build(gate, tf.placeholder_with_default(1.0, []) + 1.0) * 3.0
        with tf.Session() as session:
            step = pool.submit(session.run, y, None, options)
            assert gate.entered.wait(SOON_S)
            (control,) = session._running
            node = control.operation()
            gate.may_go.set()
            assert step.result(SOON_S) == 6.0
    assert not hasattr(control, "operation")
    assert node is not None
    assert (node.op.name, node.name.rpartition("/")[2]) == ("PyFunc", "held")
