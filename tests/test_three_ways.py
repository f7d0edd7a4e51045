"""Three ways into a graph: by hand, by a trace of Python with static control flow, by conversion of source.

The same program gets equal values, gradients and second derivatives. A trace unrolls its loops and has one
branch, so it stands for the program at one trip count and one choice, also where these are tensors of which
its call has the values; the other two are for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf

pytest.importorskip("malt", reason="diastatic-malt is not installed (extra autograph)")


class Program(NamedTuple):
    """``by_hand(x, w, n, up)`` builds the control flow, ``python`` is written with Python's."""

    by_hand: Callable[..., Any]
    python: Callable[..., Any]


def loop_by_hand(x, w, n, up):
    def body(i, h):
        return i + 1, tf.tanh(tf.matmul(h, w)) + x

    return tf.while_loop(lambda i, h: i < n, body, [0, x])[1]


def loop(x, w, n, up):
    h = x
    for _ in range(n):
        h = tf.tanh(tf.matmul(h, w)) + x
    return h


def branch_by_hand(x, w, n, up):
    return tf.cond(up, lambda: tf.exp(tf.matmul(x, w)), lambda: x * x * x)


def branch(x, w, n, up):
    if up:
        return tf.exp(tf.matmul(x, w))
    return x * x * x


def branch_in_a_loop_by_hand(x, w, n, up):
    def body(i, h):
        even = tf.equal(i % 2, 0)
        taken = tf.cond(tf.logical_and(even, up), lambda: tf.sin(tf.matmul(h, w)), lambda: h * 0.5)
        return i + 1, taken

    return tf.while_loop(lambda i, h: i < n, body, [0, x])[1]


def branch_in_a_loop(x, w, n, up):
    h = x
    for i in range(n):
        if i % 2 == 0 and up:
            h = tf.sin(tf.matmul(h, w))
        else:
            h = h * 0.5
    return h


def loop_in_a_loop_by_hand(x, w, n, up):
    def outer(i, h):
        inner = tf.while_loop(lambda j, g: j < i, lambda j, g: (j + 1, tf.sin(g) + tf.matmul(x, w)), [0, h])
        return i + 1, inner[1]

    return tf.while_loop(lambda i, h: i < n, outer, [0, x])[1]


def loop_in_a_loop(x, w, n, up):
    h = x
    for i in range(n):
        for _ in range(i):
            h = tf.sin(h) + tf.matmul(x, w)
    return h


def early_end_by_hand(x, w, n, up):
    def body(i, h, going):
        h = tf.tanh(tf.matmul(h, w))
        return i + 1, h, tf.logical_and(going, i < 2)

    return tf.while_loop(lambda i, h, going: tf.logical_and(i < n, going), body, [0, x, True])[1]


def early_end(x, w, n, up):
    h = x
    for i in range(n):
        h = tf.tanh(tf.matmul(h, w))
        if i >= 2:
            break
    return h


def helper_with_returns(h, w, i):
    if i >= 2:
        return tf.matmul(h, w)
    return tf.cos(h)


def called_by_hand(x, w, n, up):
    def body(i, h):
        return i + 1, tf.cond(i >= 2, lambda: tf.matmul(h, w), lambda: tf.cos(h))

    return tf.while_loop(lambda i, h: i < n, body, [0, x])[1]


def called(x, w, n, up):
    h, i = x, 0
    while i < n:
        h = helper_with_returns(h, w, i)
        i += 1
    return h


PROGRAMS = [
    Program(loop_by_hand, loop),
    Program(branch_by_hand, branch),
    Program(branch_in_a_loop_by_hand, branch_in_a_loop),
    Program(loop_in_a_loop_by_hand, loop_in_a_loop),
    Program(early_end_by_hand, early_end),
    Program(called_by_hand, called),
]


def derivatives(y: Any, x: Any, w: Any) -> list[Any]:
    """The value, the gradients and the gradients of their squares."""
    first = tf.gradients(tf.reduce_sum(tf.square(y)), [x, w], unconnected_gradients="zero")
    total = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
    return [y, *first, *tf.gradients(total, [x, w], unconnected_gradients="zero")]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.python.__name__)
def test_three_ways_give_equal_values_gradients_and_second_derivatives(program):
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, [2, 3])
        w = tf.placeholder(tf.float64, [3, 3])
        n, up = tf.placeholder(tf.int32, []), tf.placeholder(tf.bool, [])
        by_hand = derivatives(program.by_hand(x, w, n, up), x, w)
        converted = derivatives(tf.function(program.python, autograph=True)(x, w, n, up), x, w)
        traced = tf.function(program.python)
        feed = {x: rng.standard_normal((2, 3)), w: rng.standard_normal((3, 3))}
        for count, choice in [(4, True), (4, False), (1, True), (0, True)]:
            found = session.run(
                [by_hand, converted, derivatives(traced(x, w, count, choice), x, w)],
                {**feed, n: count, up: choice},
            )
            for hand, conversion in zip(found[0][:3], found[1][:3], strict=True):
                np.testing.assert_array_equal(hand, conversion)
            for hand, conversion, trace in zip(*found, strict=True):  # sums in another order
                np.testing.assert_allclose(conversion, hand, rtol=1e-12)
                np.testing.assert_allclose(trace, hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.python.__name__)
def test_a_trace_that_asks_a_tensor_keeps_one_way_where_the_others_keep_both(program):
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        x, w = tf.constant(rng.standard_normal((2, 3))), tf.constant(rng.standard_normal((3, 3)))
        n, up = tf.placeholder(tf.int32, []), tf.placeholder(tf.bool, [])
        by_hand = derivatives(program.by_hand(x, w, n, up), x, w)
        converted = derivatives(tf.function(program.python, autograph=True)(x, w, n, up), x, w)
        kept = tf.function(program.python)
        with pytest.warns(tf.errors.TracerWarning, match=r"test_three_ways\.py:\d+\): .* in the traced call"):
            traced = derivatives(kept(x, w, np.int32(3), np.bool_(True)), x, w)
        again = kept(x, w, np.int32(1), np.bool_(False))
        for count, choice in [(3, True), (1, False)]:
            feed = {n: count, up: choice}
            hand, conversion, trace, other = session.run([by_hand, converted, traced, again], feed)
            for a, b in zip(hand, conversion, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-12)
            is_kept = (count, choice) == (3, True)
            assert np.allclose(trace[0], hand[0], rtol=1e-12) is is_kept
            np.testing.assert_array_equal(other, trace[0])
            if is_kept:
                for a, b in zip(hand, trace, strict=True):
                    np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
