"""Rows of tensors by numbers that loops compute: `x[t]` is machine code, and gives what slices give."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from tests.executor.fused_sessions import both, in_all_modes
from tests.executor.test_compiled_body import loops_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ROWS = 6
TAKEN = {
    "a number": lambda x, t: x[t],
    "from the end": lambda x, t: x[-1 - t],
    "and all of it": lambda x, t: x[t, :, :],
    "and an ellipsis": lambda x, t: x[t, ...],
    "a long number": lambda x, t: x[tf.cast(t, tf.int64)],
    "twice": lambda x, t: x[t] + x[t],
}
LEFT = {
    "a part of it": lambda x, t: x[t, :, 1:],
    "an element of it": lambda x, t: x[t, 1],
    "of another axis": lambda x, t: x[:, t % 2][0] + tf.zeros([2, 3], x.dtype),
    "a stretch": lambda x, t: x[t : t + 1][0],
    "every second": lambda x, t: x[t, ::2],
    "a new axis": lambda x, t: x[t, tf.newaxis],
}


def loop(take, dtype=tf.float32, rows=ROWS):
    """The sum of what ``take`` finds in each iteration."""
    x, steps = tf.placeholder(dtype, [rows, 2, 3]), tf.placeholder(tf.int32, [])
    start = tf.zeros(take(x, tf.constant(0)).shape, dtype)
    _, total = tf.while_loop(lambda t, _: t < steps, lambda t, total: (t + 1, total + take(x, t)), [0, start])
    return total, x, steps


def numbers(rows=ROWS):
    return np.arange(rows * 6).reshape(rows, 2, 3) ** 2


@pytest.mark.parametrize("dtype", [tf.float32, tf.int64])
@pytest.mark.parametrize("take", [*TAKEN.values(), *LEFT.values()], ids=[*TAKEN, *LEFT])
def test_every_mode_gives_the_same(monkeypatch, take, dtype):
    total, x, steps = loop(take, dtype)
    results, _ = in_all_modes(monkeypatch, total, {x: numbers(), steps: ROWS})
    for found in results.values():
        np.testing.assert_array_equal(found, results["off"])


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_the_loop_is_one_call(monkeypatch, take):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    total, x, steps = loop(take)
    with tf.Session() as session:
        session.run(total, {x: numbers(), steps: ROWS})
        assert loops_of(session) == [True]


def test_elements_of_a_vector(monkeypatch):
    x, y = tf.placeholder(tf.float32, [ROWS]), tf.placeholder(tf.float32, [3])
    _, total = tf.while_loop(lambda t, _: t < ROWS, lambda t, total: (t + 1, total * 0.5 + x[t]), [0, y])
    results, _ = in_all_modes(monkeypatch, total, {x: np.arange(ROWS), y: [1, 2, 3]})
    for found in results.values():
        np.testing.assert_array_equal(found, results["off"])


@pytest.mark.parametrize("rows", [ROWS, 5000])
def test_gradients(monkeypatch, rows):
    """Also of what is too large to be copied as a feed, and read where it is."""

    def build():
        total, x, steps = loop(lambda x, t: tf.tanh(x[t] * 0.01), rows=rows)
        return [total, *tf.gradients(total, x)], {"x": x, "steps": steps}

    plain, compiled, _ = both(monkeypatch, build, {"x": numbers(rows), "steps": ROWS}, steps=2)
    for one, other in zip(plain[1], compiled[1], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jit", ["off", "eager"])
@pytest.mark.parametrize("take", [lambda x, t: x[t], lambda x, t: x[-1 - t]])
def test_what_is_no_row_is_an_error_that_names_the_slice(monkeypatch, jit, take):
    monkeypatch.setenv("FLOWRT_JIT", jit)
    total, x, steps = loop(take)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="strided_slice"):
            session.run(total, {x: numbers(), steps: ROWS + 1})
        np.testing.assert_array_equal(session.run(total, {x: numbers(), steps: ROWS}), numbers().sum(0))
