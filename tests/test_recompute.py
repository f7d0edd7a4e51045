"""`flowrt.functions.recompute`: gradients compute again what is inside, in less memory, with the same
values."""

from __future__ import annotations

import collections
import math
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.executor.plan.tiers import Jit, jit_mode
from tests.each import daily

SIZE = 130
UNIT = 4 * SIZE * SIZE
"""Bytes of one activation. It is more than 64 KiB: what is fetched lies in no buffer of the plan then."""


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph() as graph:
        yield graph


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


class Step:
    """A step's values, its kernels by op, and the bytes that are live at once, in activations."""

    def __init__(self, fetches: Any, feed: Any) -> None:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            self.values = session.run(fetches, feed)
            plans = [plan for request in session._requests.values() for plan in request.plans.values()]
            plan = max(plans, key=lambda plan: len(plan.placed))
            self.kernels = collections.Counter(node.op.name for node in plan.placed)
            memories = [part.buffers.memory for part in plan.partitions.values()]
            self.peak = sum(memory.lower_bound for memory in memories) / UNIT
            self.arena = sum(memory.nbytes for memory in memories) / UNIT


def chain(count: int, *, recomputed: bool, dropout: bool = False, segments: int | None = None) -> Step:
    """The gradients of ``count`` equal layers."""
    with tf.Graph().as_default():
        rng = np.random.default_rng(count)
        start = [rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 12 for _ in range(count)]
        weights = [tf.Variable(w) for w in start]
        x = tf.placeholder(tf.float32, [SIZE, SIZE])

        def layer(number: int) -> Any:
            def apply(h: Any) -> Any:
                h = tf.tanh(tf.matmul(h, weights[number]))
                return tf.nn.dropout(h, rate=0.25, seed=number) if dropout else h

            return apply

        layers = [layer(i) for i in range(count)]
        if recomputed:
            y = tf.recompute_sequential(layers, x, segments)
        else:
            y = x
            for apply in layers:
                y = apply(y)
        loss = tf.reduce_sum(tf.square(y))
        feed = {x: np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)}
        return Step([loss, *tf.gradients(loss, [x, *weights])], feed)


# --- memory and work


@pytest.mark.parametrize(
    ("count", "dropout"),
    daily(product([16, 64, 144], [False, True]), lambda count, dropout: count == (64 if dropout else 16)),
)
def test_a_chain_of_n_layers_takes_the_square_root_and_one_more_forward_pass(count, dropout):
    plain = chain(count, recomputed=False, dropout=dropout)
    less = chain(count, recomputed=True, dropout=dropout)
    in_a_layer = 2.25 if dropout else 1.0  # tanh, what dropout leaves of it, which elements those are
    assert plain.peak >= count
    assert less.peak <= (1 + in_a_layer) * math.sqrt(count) + 3
    assert less.arena <= 1.1 * less.peak
    for op in ("Tanh", "MatMul"):
        assert plain.kernels[op] < less.kernels[op] <= plain.kernels[op] + count
    for a, b in zip(plain.values, less.values, strict=True):
        if jit_mode() is Jit.OFF:
            np.testing.assert_array_equal(a, b)  # the same kernels on the same numbers
        else:  # other groups round in other places
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_a_chain_without_layers_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected at least one layer; got none"):
        tf.recompute_sequential([], tf.ones([2]))


def test_segments_choose_between_memory_and_nothing():
    peaks = [chain(16, recomputed=True, segments=n).peak for n in (1, 4, 16)]
    assert peaks[1] < min(peaks[0], peaks[2])
    for wrong in (0, 17):
        with pytest.raises(
            InvalidArgumentError, match=f"from 1 to 16 segments, the number of layers; got {wrong}"
        ):
            chain(16, recomputed=True, segments=wrong)
    with pytest.raises(DTypeError, match="recompute: expected a callable; got 3"):
        tf.recompute(3)


def test_a_step_without_gradients_computes_once():
    f = tf.recompute(lambda x: tf.tanh(tf.tanh(x)))
    assert Step(f(tf.placeholder_with_default(1.0, [])), {}).kernels["Tanh"] == 2


# --- random numbers


@pytest.mark.parametrize("seed", [None, 7])
def test_a_mask_is_the_same_again_and_another_one_in_the_next_step(seed):
    dropped = tf.recompute(lambda x: tf.nn.dropout(tf.square(x), rate=0.5, seed=seed))
    x = tf.constant(np.arange(1, 101, dtype=np.float32))
    y = dropped(x) + dropped(x)
    (g,) = tf.gradients(tf.reduce_sum(tf.square(y)), x)  # 2 y dy/dx: of the same mask, it is 0 where y is
    with tf.Session() as session:
        masks = []
        for _ in range(3):
            value, slope = session.run([y, g])
            np.testing.assert_allclose(slope, 4 * value * value / np.arange(1, 101), rtol=1e-5)
            masks.append(tuple(value > 0))
    assert len(set(masks)) == 3


def test_a_seeded_draw_is_what_it_is_without():
    def noisy(x):
        return x * tf.random_normal([5], seed=3)

    x = tf.ones([5])
    plain, again = run([noisy(x), tf.recompute(noisy)(x)])
    np.testing.assert_array_equal(plain, again)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: tf.random_uniform([3], maxval=5, dtype=tf.int32),
        lambda x: tf.truncated_normal([3]),
        tf.random_shuffle,
        lambda x: tf.random_gamma([3], 2.0),
        lambda x: tf.random_poisson(4.0, [3]),
        lambda x: tf.multinomial(tf.zeros([1, 9]), 3)[0],
    ],
)
def test_every_draw_can_be_made_again(draw):
    f = tf.recompute(lambda x: tf.sin(x * tf.cast(draw(x), tf.float32)))
    x = tf.constant([1.0, 2.0, 3.0])
    y = f(x)
    (g,) = tf.gradients(tf.asin(y) * 0 + y, x, stop_gradients=None)
    inner = tf.gradients(tf.reduce_sum(y), x)[0]
    with tf.Session() as session:
        a, b = session.run([g, inner])  # two gradients, two recomputations, one draw
    np.testing.assert_allclose(a, b, rtol=1e-5)


# --- values


def test_variables_are_read_once_though_they_change_meanwhile():
    v = tf.Variable(3.0)
    f = tf.recompute(lambda x: tf.square(x * v))
    x = tf.constant(2.0)
    y = f(x)
    with tf.control_dependencies([y]):
        changed = v.assign(100.0)
    with tf.control_dependencies([changed]):
        dx, dv = tf.gradients(tf.identity(y), [x, v])
    assert run([dx, dv, changed]) == [36, 24, 100]


def test_effects_happen_once():
    v = tf.Variable(0.0)

    @tf.recompute
    def f(x):
        v.assign_add(1.0)
        return tf.sin(x) * v

    x = tf.constant(1.0)
    (g,) = tf.gradients(tf.square(f(x)), x)
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(g)
        assert session.run(v) == 1


def test_variables_are_made_as_without():
    block = tf.recompute(lambda x: tf.layers.dense(x, 3))
    x = tf.ones([2, 3])
    y = block(block(x))
    assert len(tf.trainable_variables()) == 4
    assert all(g is not None for g in tf.gradients(y, tf.trainable_variables()))


def second_order(wrap: Any) -> Any:
    v = tf.Variable(0.5)
    f = wrap(lambda x: {"y": tf.exp(tf.sin(x * v)) * x})
    x = tf.constant([0.3, 0.7])
    y = f(f(x)["y"])["y"]
    dx, dv = tf.gradients(y, [x, v])
    return run([y, dx, dv, *tf.gradients(dx, [x, v]), *tf.gradients(dv, [x, v])])


def test_second_derivatives():
    for a, b in zip(second_order(lambda f: f), second_order(tf.recompute), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.recompute])
def test_branches_and_loops_inside(wrap):
    @wrap
    def f(x):
        y = tf.cond(x > 0, lambda: tf.sin(x), lambda: tf.exp(x))
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * tf.cos(y)), [0, y])[1]

    x = tf.placeholder(tf.float32, [])
    y = f(x)
    (g,) = tf.gradients(y, x)
    (gg,) = tf.gradients(g, x)
    h = 1e-2
    for at in (0.7, -0.7):
        with tf.Session() as session:
            value, up, down = (session.run(y, {x: at + d}) for d in (0, h, -h))
            assert session.run(g, {x: at}) == pytest.approx((up - down) / (2 * h), rel=1e-3)
            assert session.run(gg, {x: at}) == pytest.approx(
                (up - 2 * value + down) / h**2, rel=0.05, abs=0.02
            )


def test_in_a_loop_only_the_arguments_are_kept():
    def loop(wrap):
        body = wrap(lambda h: tf.tanh(tf.sin(tf.tanh(tf.sin(h)))))
        x = tf.constant(np.linspace(-1, 1, 5, dtype=np.float32))
        y = tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, body(h)), [0, x])[1]
        (g,) = tf.gradients(y, x)
        function = y.op.node.attrs["body"]
        return [y, g], sum(node.op.name == "TensorListPushBack" for node in function)

    (plain, kept), (again, less) = loop(lambda f: f), loop(tf.recompute)
    assert kept > less == 1
    found = run([*plain, *again])
    for a, b in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_alias():
    assert tf.recompute_grad is tf.recompute


def test_layers_that_are_none_are_an_error_with_the_users_line():
    for layers in (tf.tanh, [tf.tanh, 3], iter([tf.tanh])):
        with pytest.raises(
            DTypeError, match=r"test_recompute.py:\d+\): recompute_sequential: expected layers"
        ):
            tf.recompute_sequential(layers, tf.constant(1.0))
